"""The database: one engine a process, request-scoped sessions for reading, short transactions for writing."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentapp.errors import NotBound, StorageUnavailable
from agentapp.isolation import Binder

BUSY_SECONDS = 10.0  # for somebody else's lock
RUSH_SECONDS = 30.0  # for those of this process who came before: of a rush everybody is served, some late
NAP = 0.001
POOL = 30
UNDEFINED_TABLE = "42P01"  # PostgreSQL's word for it; to SQLite it is an error like any other


class Database:
    """Nothing is opened until the first query, so it may be made before a fork and used after it.

    ``reading()`` gives the session of the scope bound right here, on this thread: a thread of the
    same request gets one of its own, because a session must never be used by two at once. It is
    removed when the binding ends.
    """

    def __init__(self, url: str, binder: Binder) -> None:
        self.engine = make_engine(url)
        self._binder = binder
        self._readers = scoped_session(sessionmaker(self.engine), scopefunc=self._key)
        self._writers = sessionmaker(self.engine.execution_options(agentapp_writes=True))
        # SQLite lets one writer in at a time. Waiting for it in its busy loop is slow and unfair; a lock
        # in front of it, one for the process, keeps the queue short and in order. Elsewhere writers
        # have half of the connections: in a rush of messages, whoever only reads still gets one.
        self._door = threading.BoundedSemaphore(1 if self.engine.dialect.name == "sqlite" else POOL // 2)
        binder.at_release(self.release)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The scope's own session. Its connection is kept until `release`."""
        with _as_unavailable():
            yield self._readers()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One short write transaction: committed at the end, rolled back on any error.

        The scope's reading connection is given back first. If every thread kept one while it waited
        for a second, the pool would run dry and nobody would ever get on.
        """
        self.release()
        with self._in_line(), _as_unavailable(), self._writers.begin() as db:
            yield db

    def release(self) -> None:
        """Give the bound scope's connection back: at the end of every binding, and before every write."""
        with suppress(NotBound):
            if self._readers.registry.has():
                self._readers.remove()

    def ping(self) -> None:
        """Raises `StorageUnavailable` unless the database answers and has tables: a lost SQLite file is
        made anew, empty, by whoever opens it next.
        """
        try:
            with self.reading() as db:
                db.execute(text("SELECT version_num FROM alembic_version"))
        except exc.ProgrammingError as error:
            raise StorageUnavailable("The database has no tables.") from error

    def close(self) -> None:
        """Close the connections that nobody has in hand."""
        self.engine.dispose()

    def open_readers(self) -> int:
        """How many request-scoped sessions are alive: what a leak would make grow."""
        return len(self._readers.registry.registry)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        if not self._door.acquire(timeout=RUSH_SECONDS):
            raise StorageUnavailable("The database is busy. Try again in a moment.")
        try:
            yield
        finally:
            self._door.release()

    def _key(self) -> tuple[str, int]:
        return self._binder.current().request_id, threading.get_ident()


def make_engine(url: str) -> Engine:
    """Its errors name no parameters: they go to the log, and what people wrote does not belong there."""
    if url.startswith("sqlite"):
        engine = create_engine(
            url,
            hide_parameters=True,
            max_overflow=-1,  # a SQLite connection is only an open file; the thread count bounds it
            connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_size=POOL // 3,
            max_overflow=POOL - POOL // 3,
            pool_timeout=RUSH_SECONDS,
            pool_pre_ping=True,
            connect_args={"connect_timeout": int(BUSY_SECONDS)},
        )
        event.listen(engine, "connect", _configure_postgres)
    event.listen(engine, "connect", _remember_pid)
    event.listen(engine, "checkout", _refuse_inherited)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite, not by the driver
    # SQLite's own knows only ASCII letters, and searching ignores case by it.
    connection.create_function("lower", 1, _lower, deterministic=True)
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _configure_postgres(connection: Any, record: Any) -> None:
    """A row that somebody holds for ever must not hold all who wait for it as well."""
    connection.execute(f"SET lock_timeout = '{BUSY_SECONDS:.0f}s'")
    connection.commit()


def _lower(value: str | None) -> str | None:
    return None if value is None else str(value).lower()


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its lock at once: a reader that becomes one fails under load, whatever the timeout."""
    writes = connection.get_execution_options().get("agentapp_writes")
    if writes and _begun_at_once(connection):
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begun_at_once(connection: Connection) -> bool:
    """Whether the writer's lock could be had in time. SQLite itself waits for another process in naps that
    grow to a tenth of a second, and whoever sleeps that long is often too late again.
    """
    cursor = connection.connection.cursor()
    ends = time.monotonic() + BUSY_SECONDS
    try:
        cursor.execute("PRAGMA busy_timeout = 0")
        while time.monotonic() < ends:
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    return False
                time.sleep(NAP)
            else:
                return True
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        cursor.close()


def _remember_pid(connection: Any, record: Any) -> None:
    record.info["pid"] = os.getpid()


def _refuse_inherited(connection: Any, record: Any, proxy: Any) -> None:
    """A connection opened before a fork belongs to the parent: sharing it would mix up answers."""
    if record.info["pid"] != os.getpid():
        record.dbapi_connection = proxy.dbapi_connection = None
        raise exc.DisconnectionError("this connection was opened by another process")


@contextmanager
def _as_unavailable() -> Iterator[None]:
    """What the database cannot help is `StorageUnavailable`; what our own statements did wrong is not."""
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:
        if getattr(error.orig, "sqlstate", "") != UNDEFINED_TABLE:
            raise
        raise StorageUnavailable("The database has no tables.") from error
    except (exc.DBAPIError, exc.TimeoutError) as error:
        raise StorageUnavailable("The database cannot be reached right now. Nothing was lost.") from error
