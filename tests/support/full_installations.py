"""An installation on SQLite with something in every table, and its rows as they are in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from flask import Flask
from sqlalchemy import text
from sqlalchemy.orm import Session

from agentapp.guardrails.cell import Key
from agentapp.storage.engines import make_engine
from agentapp.storage.models import Base, ChargedTurn, SetupLink, TurnEvents
from agentapp.storage.operator_models import (
    AuditRow,
    BackgroundJob,
    UsageDay,
    UsageTotal,
    UsageTotalDay,
    WorkerRow,
)
from agentapp.web.parts import Parts
from tests.support.admin_rows import trip
from tests.support.erased_users import MARK, leave_traces
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE
from tests.support.users import person
from tests.web.admin.planted import plant

# What one of the two databases, or the form in which rows travel, could take for something else.
ODD = "tab\t, line\nend, \\N and \\. and \\t, 'single' \"double\" \r\n{brace} 😀 ÄÖ é́ 東京 NULL"
FAR = 2**40  # more than 32 bits


@dataclass(frozen=True)
class Full:
    """``chat`` is one of the user ann, who is signed in with that cookie and token and sees these ``pages``.
    The breaker of ``tripped`` is open; ``interrupted`` is a turn of a worker that is gone.
    """

    file: Path
    cookie: str
    csrf: str
    chat: str
    tripped: str
    interrupted: str
    pages: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"


def fill(app: Flask) -> Full:
    """Its servers have ended after it."""
    parts: Parts = app.extensions["agentapp"]
    carl, ann = person(app, f"{MARK}carl"), person(app, "ann")
    leave_traces(app, carl)
    chat, tripped = ann.new_chat(), ann.new_chat()
    ann.ask(chat, f"{ODD} xylophonist")
    ann.ask(chat, "and once more, please")
    ann.post(f"/chat/{chat}/pin", pinned="1")
    ann.ask(tripped, "Hello")
    trip(parts, Key("session", tripped))
    planted = plant(app, "north", 3)
    given = parts.accounts.add("givenpassword", "a long enough password", tenant="north-tenant")
    parts.accounts.add("disabled-one", "a long enough password")
    parts.accounts.disable("disabled-one")
    pages = {path: ann.get(path).text for path in (f"/chat/{chat}", "/chat?q=xylophonist", "/account")}
    cookie = ann.browser.get_cookie("agentapp")
    assert cookie is not None
    parts.turns.close()
    parts.close()
    file = Path(str(parts.db.engine.url.database))
    engine = make_engine(f"sqlite:///{file}")
    with Session(engine.execution_options(agentapp_migrates=True)) as db:
        _add_the_rest(db, planted.turn_id, given.id)
        db.commit()
    engine.dispose()
    return Full(file, cookie.value, ann.csrf, chat, tripped, planted.turn_id, pages)


def _add_the_rest(db: Session, turn_id: str, given: str) -> None:
    """What only a server would do that runs for longer, or that has died."""
    now = utc_now()
    owner = db.execute(text("SELECT tenant_id, user_id, session_id FROM live_turns")).one()
    own: dict[str, Any] = dict(owner._mapping)
    db.execute(text("UPDATE users SET password_given_at = created_at WHERE id = :id"), {"id": given})
    lost = {"worker": ELSEWHERE, "lease": f"{now - timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f}"}
    db.execute(text("UPDATE live_turns SET worker = :worker, lease_until = :lease, stop_asked = 1"), lost)
    for number, answer in enumerate((True, False), 1):
        one = "SELECT min(id) FROM turns WHERE number = :n"
        db.execute(text(f"UPDATE turns SET can_retry = :a WHERE id = ({one})"), {"a": answer, "n": number})
    events = [["text", {"text": ODD}]]
    day = {"day": "2020-02-02", "tenant_id": own["tenant_id"], "agent": "desk", "model": "m"}
    spent = {"turns": 1, "model_calls": 1, "input_tokens": FAR, "output_tokens": 0, "cost_microusd": FAR}
    seen = now - timedelta(hours=1)
    db.add_all(
        [
            TurnEvents(**own, turn_id=turn_id, first=1, events=events, spent=[FAR, 1.5, None]),
            ChargedTurn(**own, turn_id="gone", spent=[1, 2], charged_at=now),
            SetupLink(digest="d" * 64, created_at=now),
            UsageTotal(**day, turns=FAR, tokens=FAR + 1, cost_microusd=FAR + 2),
            UsageDay(**day, user_id="", **spent),
            UsageTotalDay(day="2020-02-02", summed_at=now),
            BackgroundJob(name="a job", next_at=now + timedelta(days=3)),
            WorkerRow(id="w", host="gone", pid=1, started_at=seen, seen_at=seen, numbers={"turns": 1}),
            AuditRow(id=FAR, at=now, action="cleaned-up", subject="", request_id="-", detail={"text": ODD}),
        ]
    )


def rows_in(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table as SQLite itself has it. Words have no order of their own."""
    found = {}
    with closing(sqlite3.connect(file)) as connection:
        for table in Base.metadata.sorted_tables:
            names = [column.name for column in table.columns]
            rows = connection.execute(f'SELECT {", ".join(names)} FROM "{table.name}"').fetchall()
            words = names.index("words") if "words" in names else None
            found[table.name] = sorted(
                (
                    tuple(sorted(value.split()) if n == words else value for n, value in enumerate(row))
                    for row in rows
                ),
                key=repr,
            )
    return found


def triggers_of(file: Path) -> dict[str, str]:
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        return dict(found.fetchall())
