"""Databases whose disk is full, so that every write that needs room fails as it really does then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, text

from agentapp.storage.db import Database

NO_ROOM = """
    CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left'; END $$
"""


@contextmanager
def full_sqlite(db: Database) -> Iterator[None]:
    """The file may not grow. SQLite then fails as it does when the disk has no room."""

    def allow_pages(connection: Any, pages: int) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {pages}")  # never less than there are
        cursor.close()

    def limit(connection: Any, record: Any) -> None:
        allow_pages(connection, 1)

    def let_all_open_anew() -> None:
        with db._write_permits.held(10):  # so that nobody has the connection that writes
            db.close()

    event.listen(db.writing_engine, "connect", limit)
    let_all_open_anew()
    try:
        yield
    finally:
        event.remove(db.writing_engine, "connect", limit)
        let_all_open_anew()


@contextmanager
def full_postgresql(db: Database) -> Iterator[None]:
    """A real disk cannot be filled here. The server is made to send the error that it sends then."""
    with db.engine.begin() as connection:
        connection.execute(text(NO_ROOM))
        connection.execute(
            text("CREATE TRIGGER no_room BEFORE INSERT ON turns FOR EACH ROW EXECUTE FUNCTION no_room()")
        )
    try:
        yield
    finally:
        with db.engine.begin() as connection:
            connection.execute(text("DROP TRIGGER no_room ON turns"))
