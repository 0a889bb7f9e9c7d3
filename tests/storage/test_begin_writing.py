"""SQLite's write transactions: none is taken for begun that is not, and none leaves something behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from agentapp.isolation import ThreadBinder
from agentapp.storage import engines
from agentapp.storage.db import Database
from agentapp.storage.engines import begin_writing
from agentapp.storage.models import Tenant
from agentapp.storage.statements import Statement

ALL_TENANTS = Statement(select(Tenant.id))


class DeafCursor:
    """As Python's driver is when another thread resets the error meanwhile: it fails and raises nothing."""

    def __init__(self, connection: sqlite3.Connection, fails: int) -> None:
        self.connection, self._cursor, self._fails = connection, connection.cursor(), fails

    def execute(self, statement: str) -> None:
        if self._fails:
            self._fails -= 1
        else:
            self._cursor.execute(statement)


def test_a_transaction_that_was_not_begun_is_begun_again() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        begin_writing(DeafCursor(connection, fails=3))
        assert connection.in_transaction


def test_one_that_can_never_be_begun_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LOCK_WAIT_SECONDS", 0.01)
    never: Any = SimpleNamespace(execute=lambda _: None, connection=SimpleNamespace(in_transaction=False))
    with pytest.raises(sqlite3.OperationalError, match="begun"):
        begin_writing(never)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/a.sqlite3", ThreadBinder())
    with made.transaction() as connection:
        connection.run_text("CREATE TABLE tenants (id TEXT)")
        connection.run_text("INSERT INTO tenants VALUES ('one'), ('two')")
    yield made
    made.close()


def test_an_answer_that_nobody_reads_ends_with_its_transaction(db: Database) -> None:
    """Otherwise SQLite goes on reading for it: the next transaction would be refused as soon as another
    process has written. And the thread that lets go of it later would disturb whoever writes then.
    """
    with db.transaction() as connection:
        unread = connection.run(ALL_TENANTS, {})
    with closing(sqlite3.connect(str(db.engine.url.database))) as other, other:
        other.execute("INSERT INTO tenants VALUES ('three')")
    with db.transaction() as connection:
        assert len(connection.run(ALL_TENANTS, {}).all()) == 3
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        unread.all()
