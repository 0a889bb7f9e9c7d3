"""How SQLite would run the statements that were sent."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import create_engine

from agentapp.storage.db import Database
from tests.support.statements import statements_noted

# One word after SCAN: the table, or the name that the statement gives it. "SCAN CONSTANT ROW" is no table,
# and neither is what another step of the plan has made. The index of the open alerts has only those.
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


@contextmanager
def scans_noted(db: Database, tables: str) -> Iterator[list[str]]:
    """Of these tables (a pattern), the steps in which one is read as a whole, whatever the statement does."""
    noted: list[tuple[str, Any]] = []
    scans: list[str] = []
    with statements_noted(lambda statement, parameters: noted.append((statement, parameters))):
        yield scans
    with closing(sqlite3.connect(str(db.engine.url.database))) as connection:
        for statement, parameters in noted:
            if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH)\b", statement):
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                scans += [row[3] for row in plan if re.fullmatch(rf"SCAN ({tables})( .*)?", row[3])]
