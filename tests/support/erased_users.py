"""A user with traces everywhere, and the search for what is left of one."""

from __future__ import annotations

from pathlib import Path

from flask import Flask
from sqlalchemy import Engine, text

from agentapp.isolation import RequestScope, UserScope
from agentapp.storage.operator_models import AlertRow, UsageDay
from agentapp.storage.user_erasure import UserErasureStore
from agentapp.web.parts import Parts
from tests.support.times import utc_now
from tests.support.users import PAGE, Person, csrf_of

MARK = "zqcanary"  # in everything that the user has said, called or is; never in what others have


def leave_traces(app: Flask, who: Person, chats: int = 2) -> None:
    """In every table that may hold something of a user. ``who`` has the mark in the name."""
    parts: Parts = app.extensions["agentapp"]
    for number in range(chats):
        chat = who.new_chat()
        who.ask(chat, f"Hello {MARK}message{number} and {MARK}again")
        who.ask(chat, f'/call calculate {{"expression": "1+1", "{MARK}tool": 1}}')
        parts.turns.kit.notes.add(scope_of(parts, who).within(chat), f"{MARK}note{number}")
        who.post(f"/chat/{chat}/rename", title=f"{MARK}title{number}")
    deleted = who.new_chat()
    who.ask(deleted, f"Hello {MARK}deleted")
    who.post(f"/chat/{deleted}/delete")
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    wrong = {"csrf_token": csrf, "username": who.name, "password": "not the right one"}
    browser.post("/login", data=wrong, headers={**PAGE, "User-Agent": f"{MARK}browser"})
    scope = scope_of(parts, who)
    user_id, tenant_id = scope.user_id, scope.tenant_id
    with parts.binder.bound(scope), parts.db.writing() as db:
        db.execute(
            text("UPDATE logins SET address = :to WHERE user_id = :id"),
            {"to": f"{MARK}address", "id": user_id},
        )
        for n, subject in enumerate((f"user:{user_id} in {chat}", f"session:{chat}")):
            db.add(
                AlertRow(
                    id=f"{n} of {chat}", kind="budget-90", severity="warning", tenant_id=tenant_id,
                    subject=subject, detail="", request_id="", count=1, first_at=utc_now(), last_at=utc_now(),
                    delivery_attempts=0, delivery_problem="",
                )
            )  # fmt: skip
        db.merge(
            UsageDay(
                tenant_id=tenant_id, user_id=user_id, day="2020-01-01", agent="desk", model="m", turns=1,
                model_calls=1, input_tokens=10, output_tokens=5, cost_microusd=100,
            )
        )  # fmt: skip


def scope_of(parts: Parts, who: Person) -> UserScope:
    with parts.binder.bound(RequestScope(request_id="scope")):
        found = UserErasureStore(parts.db).named(who.name)
    return UserScope(request_id="test", tenant_id=found.tenant_id, user_id=found.id)


def tables_with(engine: Engine, words: list[str]) -> set[str]:
    """The tables that have any of these words in any column of any row. The tables of indexes too."""
    names = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if engine.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    found = set()
    with engine.connect() as connection:
        for (table,) in connection.execute(text(names)).all():
            for row in connection.exec_driver_sql(f'SELECT * FROM "{table}"'):
                values = [value if isinstance(value, bytes) else str(value).encode() for value in row]
                if any(word.lower().encode() in value.lower() for word in words for value in values):
                    found.add(table)
    return found


def files_with(database: Path, word: str) -> dict[str, int]:
    """How often the word is in SQLite's file, its log and its shared memory, by the ending of the name."""
    counts = {}
    for ending in ("", "-wal", "-shm"):
        file = Path(f"{database}{ending}")
        if file.exists() and (count := file.read_bytes().lower().count(word.encode())):
            counts[ending] = count
    return counts
