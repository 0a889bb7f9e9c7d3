"""Whether this worker can serve, as `GET /readyz` tells a load balancer: each check, and who makes them."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, text

from agentapp.storage.db import Database
from agentapp.storage.disk import PRIMARY_CODE
from agentapp.storage.engines import refuse_closed
from agentapp.storage.schema import first_line, problem_in

CHECK_SECONDS = 2  # for all checks together
REMEMBERED_SECONDS = 1.0
NO_ANSWER = f"database: it did not answer within {CHECK_SECONDS} seconds"

log = logging.getLogger(__name__)


def check_schema(db: Database, connection: Connection) -> str | None:
    problem = problem_in(connection)
    db.schema.saw(problem)
    return problem and f"schema: {problem}"


def check_clock(db: Database, connection: Connection) -> str | None:
    problem = db.clock.problem_by(connection)
    return problem and f"clock: {problem}"


def check_writable(db: Database, connection: Connection) -> str | None:
    if connection.dialect.name == "sqlite":
        return _check_sqlite_writable(connection)
    query = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
    is_standby, is_read_only = connection.execute(text(query)).one()
    if is_standby:
        return "writable: the database is a standby, which can only be read"
    return "writable: the database is read-only (default_transaction_read_only)" if is_read_only else None


def _check_sqlite_writable(connection: Connection) -> str | None:
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("ROLLBACK")
    except exc.OperationalError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & PRIMARY_CODE
        if code == sqlite3.SQLITE_READONLY:
            return "writable: the database's file is read-only"
        if code != sqlite3.SQLITE_BUSY:  # then somebody else writes
            raise
    return None


# What makes /readyz answer 503. Each says what is wrong, to whoever asks and in an operator's words, or None.
CHECKS: tuple[Callable[[Database, Connection], str | None], ...] = (
    check_schema,
    check_writable,
    check_clock,
)


class Readiness:  # agentapp: shared ok - what was found last is replaced as a whole
    """On a thread and a connection of its own: a pool that is all lent does not make it lie. However many
    ask, there is one round of checks at a time, and what it found is remembered for a moment.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._engine = _engine_for_checks(db)
        self._lock = threading.Lock()
        self._round: _Round | None = None
        self._told: str | None = None

    def problem(self) -> str | None:
        """What is wrong, in words; None if all is well. It takes `CHECK_SECONDS` at most."""
        now = time.monotonic()
        with self._lock:
            latest = self._round
            if latest is None or latest.is_old(now):
                latest = self._round = _Round(self._find_problem)
        return latest.found_within(CHECK_SECONDS)

    def close(self) -> None:
        latest = self._round
        if latest is not None:
            latest.found_within(CHECK_SECONDS)
        self._engine.dispose()

    def _find_problem(self) -> str | None:
        problem, why = self._look()
        if problem != self._told:
            self._told = problem
            if problem is None:
                log.warning("ready again")
            else:
                log.warning("not ready: %s%s", problem, f" ({why})" if why else "")
        return problem

    def _look(self) -> tuple[str | None, str]:
        """And what the database itself said, which is for the log alone: it may name users and addresses."""
        if (no_room := self._db.disk.problem()) is not None:
            return f"disk: {no_room}", ""
        if (locked := _problem_of_file(self._db)) is not None:
            return f"writable: {locked}", ""
        try:
            with self._engine.connect() as connection:
                for check in CHECKS:
                    if (problem := check(self._db, connection)) is not None:
                        return problem, ""
        except exc.DBAPIError as error:
            return "database: it cannot be reached or used", first_line(error)
        return None, ""


class _Round:
    """One round of checks, on a thread of its own."""

    def __init__(self, find_problem: Callable[[], str | None]) -> None:
        self._began = time.monotonic()
        self._ended: Future[tuple[str | None, float]] = Future()
        threading.Thread(
            target=_run, args=(find_problem, self._ended), name="agentapp-readiness", daemon=True
        ).start()

    def is_old(self, now: float) -> bool:
        """Only one that has ended: whoever comes later waits for the same thread."""
        return self._ended.done() and now - self._ended.result()[1] > REMEMBERED_SECONDS

    def found_within(self, seconds: float) -> str | None:
        """Counted from its beginning: if it hangs, only those who asked first wait."""
        try:
            found, _ = self._ended.result(max(0.0, self._began + seconds - time.monotonic()))
        except TimeoutError:
            return NO_ANSWER
        return found


def _run(find_problem: Callable[[], str | None], ended: Future[tuple[str | None, float]]) -> None:
    try:
        found = find_problem()
    except Exception as error:
        found = f"database: it cannot be checked ({type(error).__name__})"
    ended.set_result((found, time.monotonic()))


def _problem_of_file(db: Database) -> str | None:
    """Not only its mode counts: the whole disk may be read-only. Without it SQLite could not even read."""
    file = Path(db.engine.url.database or "")
    if db.connector is not None or not file.exists():
        return None
    if os.access(file, os.R_OK | os.W_OK) and os.access(file.parent, os.W_OK):
        return None
    return "the database's file or its directory cannot be written by the server's user"


def _engine_for_checks(db: Database) -> Engine:
    """For one connection, which is kept. If the server lets no more in, those there are go on working."""
    url = db.engine.url
    if db.connector is None:
        creator: Callable[[], Any] = partial(_open_sqlite, Path(url.database or ""))
    else:
        creator = partial(db.connector.open_for_check, CHECK_SECONDS)
    engine = create_engine(url, creator=creator, pool_size=1, max_overflow=0, hide_parameters=True)
    if db.connector is not None:
        event.listen(engine, "checkout", refuse_closed)
    return engine


def _open_sqlite(file: Path) -> sqlite3.Connection:
    """Never makes the file, and waits for nobody."""
    uri = f"{file.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
