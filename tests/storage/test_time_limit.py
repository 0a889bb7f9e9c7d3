"""A statement that takes too long is stopped, and said to be; its connection goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from agentapp.config import Settings
from agentapp.errors import StatementTimeout
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import schema
from agentapp.storage.db import Database
from agentapp.storage.time_limit import StatementClock
from tests.support.databases import only_postgresql
from tests.support.users import person

LIMIT = 0.2
# They would end by themselves, after many seconds: without the limit these tests fail instead of hanging.
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000000)"
ENDLESS = text(f"{NUMBERS} SELECT count(*) FROM n WHERE CAST(i AS TEXT) <> :secret")
ENDLESS_AFTER_ONE_ROW = text(f"{NUMBERS} SELECT i FROM n WHERE i IN (1, 20000000)")
ENDLESS_WRITE = text(
    f"INSERT INTO tenants (id, name, created_at) {NUMBERS} SELECT 'x', 'x', NULL FROM n WHERE i < 0"
)


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    made = Database(database_url, ThreadBinder(), LIMIT)
    yield made
    made.close()


def run(db: Database, statement: Any, **parameters: object) -> Any:
    with db._binder.bound(RequestScope(request_id="r")), db.reading() as session:
        return session.execute(statement, parameters).all()


def test_a_statement_that_never_ends_is_stopped_and_its_connection_goes_on(db: Database) -> None:
    for statement, parameters in ((ENDLESS, {"secret": "0"}), (ENDLESS_AFTER_ONE_ROW, {})):
        with pytest.raises(StatementTimeout, match="took too long"):
            run(db, statement, **parameters)
        assert run(db, text("SELECT 1")) == [(1,)]
    assert db.engine.pool.checkedin() == 1, "one connection was enough for all"  # type: ignore[attr-defined]


def test_a_write_that_never_ends_changes_nothing_and_the_next_one_is_fine(db: Database) -> None:
    add = "INSERT INTO tenants (id, name, created_at) VALUES (:name, :name, '2026-01-01')"

    def add_and_go_on_for_ever() -> None:
        with db.writing() as session:
            session.execute(text(add), {"name": "before"})
            session.execute(ENDLESS_WRITE)

    with pytest.raises(StatementTimeout):
        add_and_go_on_for_ever()
    with db.writing() as session:
        session.execute(text(add), {"name": "after"})
    assert run(db, text("SELECT name FROM tenants")) == [("after",)]


def test_each_statement_has_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("agentapp.storage.time_limit.time.monotonic", lambda: now)
    clock = StatementClock(10.0)
    assert not clock.is_over(), "nothing has begun"
    for _ in range(2):
        clock.start()
        now += 9.9
        assert not clock.is_over()
        now += 0.2
        assert clock.is_over()


@only_postgresql
def test_waiting_counts_too(db: Database) -> None:
    with pytest.raises(StatementTimeout):
        run(db, text("SELECT pg_sleep(5)"))


def test_a_migration_may_take_longer(database_url: str) -> None:
    with schema.migrating(database_url) as connection:
        if connection.dialect.name == "postgresql":
            assert connection.scalar(text("SHOW statement_timeout")) == "0"
        else:
            assert "statement_clock" not in connection.connection.info


def test_the_one_who_asked_is_told_and_the_log_has_one_line_without_what_they_wrote(
    settings: Settings, make_app: Callable[..., Flask], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(wanted=replace(settings, db_statement_timeout=LIMIT))
    parts = app.extensions["agentapp"]
    ann = person(app, "ann")

    def page(scope: object, *, words: str, **rest: object) -> Any:
        with parts.db.reading() as session:
            return session.execute(ENDLESS, {"secret": words}).all()

    parts.chats.page = page
    with caplog.at_level(logging.WARNING):
        answer = ann.browser.get("/chat?q=secret-words", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json["code"]) == (503, "storage-timeout")
    assert answer.headers["Retry-After"] == "5"
    assert len(caplog.records) == 1
    assert "interrupted" in caplog.text
    assert "secret-words" not in caplog.text
    del parts.chats.page
    assert ann.get("/chat").status_code == 200
