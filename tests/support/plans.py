"""How SQLite would run the statements that were sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine

from tests.support.statements import statements_noted

# One word after SCAN: the table, or the name that the statement gives it. "SCAN CONSTANT ROW" is no table, and
# neither is what another step of the plan has made. The index of the open alerts has only those.
SCANNED = re.compile(r"\bSCAN (?!CONSTANT ROW|\()(\w+)(?! USING INDEX ix_alerts_open)\b")
MADE = re.compile(r"\b(?:CO-ROUTINE|MATERIALIZE) (\w+)")


def plans_of(database_url: str, act: Callable[[], object]) -> dict[str, str]:
    """Of each SELECT that is sent meanwhile, by its text."""
    sent: list[tuple[str, Any]] = []
    with statements_noted(lambda text, values: sent.append((text, values))):
        act()
    engine = create_engine(database_url)
    try:
        with engine.connect() as db:
            return {
                text: "\n".join(
                    row[3] for row in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", tuple(values))
                )
                for text, values in sent
                if text.lstrip().startswith("SELECT")
            }
    finally:
        engine.dispose()


def scans(plans: dict[str, str]) -> list[tuple[str, str]]:
    """Which of them read a whole table, with the tables."""
    return [
        (name, text)
        for text, plan in plans.items()
        for name in SCANNED.findall(plan)
        if name not in MADE.findall(plan)
    ]


def sorts(plans: dict[str, str]) -> list[str]:
    """Which of them sort what they found."""
    return [text for text, plan in plans.items() if "USE TEMP B-TREE FOR ORDER BY" in plan]
