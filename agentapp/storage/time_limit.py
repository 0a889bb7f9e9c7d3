"""A time limit on every statement. It also ends the statement of somebody who does not wait any more."""

from __future__ import annotations

import math
import sqlite3
import time
from typing import Any

from sqlalchemy import Connection, Engine, event, exc

# SQLite's steps between two looks at the clock, about a hundredth of a second. A look needs Python's global
# lock, so it must be rare; most statements end before the first one.
STEPS_BETWEEN_LOOKS = 200_000
POSTGRES_QUERY_CANCELED = "57014"


class StatementClock:
    """Says when the statement on one SQLite connection has had its time.

    SQLite computes rows while they are fetched, so the time runs from the statement's beginning until the
    next statement begins.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, math.inf

    def start(self) -> None:
        self._ends = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._ends


def limit_statements(engine: Engine, seconds: float) -> None:
    """A statement of this SQLite engine that takes longer fails, and its connection can be used again. On
    PostgreSQL it is an option of the connection: see `postgres_options`.
    """

    def add_clock(connection: sqlite3.Connection, record: Any) -> None:
        clock = record.info["statement_clock"] = StatementClock(seconds)
        connection.set_progress_handler(clock.is_over, STEPS_BETWEEN_LOOKS)

    event.listen(engine, "connect", add_clock)
    event.listen(engine, "before_cursor_execute", _start_clock)


def took_too_long(error: exc.StatementError | exc.TimeoutError) -> bool:
    """Whether this is what a statement fails with at the limit."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.OperationalError):
        return bool(getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT)
    return getattr(cause, "sqlstate", None) == POSTGRES_QUERY_CANCELED


def _start_clock(connection: Connection, *rest: Any) -> None:
    clock: StatementClock = connection.connection.info["statement_clock"]
    clock.start()
