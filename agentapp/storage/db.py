"""The database: one engine per process, a db per request for reading, short transactions for writing."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentapp.errors import NotBound, StatementTimeout, StorageUnavailable
from agentapp.instance import make_private
from agentapp.isolation import Binder
from agentapp.storage.disk import Disk, is_disk_full
from agentapp.storage.time_limit import limit_statements, took_too_long
from agentapp.storage.write_permits import WritePermits

CONNECT_SECONDS = 10.0
LOCK_WAIT_SECONDS = 10.0  # for a lock that another process or another transaction holds
LOCK_RETRY_SECONDS = 0.001  # between two tries to get SQLite's write lock
# For the threads of this process that came first. It is long, so that when many come at once all of them are
# served, though some are late.
QUEUE_WAIT_SECONDS = 30.0
MAX_CONNECTIONS = 30  # of one process to PostgreSQL
POSTGRES_UNDEFINED_TABLE = "42P01"  # SQLite has no code of its own for this error


class Database:
    """Nothing is opened until the first query, so it may be made before a fork and used after it.

    ``reading()`` gives the db of the scope that is bound on this thread. Another thread of the same
    request gets a db of its own, because two threads must never use one at once. It is removed when
    the binding ends. With ``statement_seconds``, a statement that takes longer is a `StatementTimeout`.
    ``disk_reserve`` is how many bytes of the disk are for what has begun: see `Disk`.
    """

    def __init__(
        self,
        url: str,
        binder: Binder,
        statement_seconds: float | None = None,
        disk_reserve: int | None = None,
    ) -> None:
        self.engine = make_engine(url)
        is_sqlite = self.engine.dialect.name == "sqlite"
        self.disk = Disk(self.engine.url.database if is_sqlite else None, disk_reserve)
        if statement_seconds is not None:
            limit_statements(self.engine, statement_seconds)
        self._binder = binder
        self._readers = scoped_session(sessionmaker(self.engine), scopefunc=self._reader_key)
        self._writers = sessionmaker(self.engine.execution_options(agentapp_writes=True))
        # SQLite lets one writer in at a time. To wait for it in SQLite's own busy loop is slow and unfair,
        # so one lock for the whole process stands in front of it and keeps the queue short and in order.
        # PostgreSQL has no such limit, but writers get only half of the connections: when many messages
        # come at once, a request that only reads still gets one.
        writers_at_once = 1 if is_sqlite else MAX_CONNECTIONS // 2
        self._write_permits = WritePermits(writers_at_once)
        binder.at_release(self.release)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The scope's own db. It keeps its connection until `release`."""
        with _translating_errors(self.disk):
            yield self._readers()

    @contextmanager
    def writing(self, *, urgent: bool = False) -> Iterator[Session]:
        """One short write transaction: committed at the end, rolled back on any error. One that is ``urgent``
        goes before all others of this process that wait.

        The scope's reading connection is given back first. If every thread kept one while it waited
        for a second, the pool would run empty and all of them would wait for ever.
        """
        self.release()
        permit = self._write_permits.held(QUEUE_WAIT_SECONDS, urgent=urgent)
        with permit, _translating_errors(self.disk), self._writers.begin() as db:
            yield db

    def release(self) -> None:
        """Give the bound scope's connection back, at the end of every binding and before every write."""
        with suppress(NotBound):
            if self._readers.registry.has():
                self._readers.remove()

    def ping(self) -> None:
        """Raises `StorageUnavailable` unless the database answers and has tables.

        The tables are checked too, because SQLite makes a new empty file in place of one that was lost.
        """
        try:
            with self.reading() as db:
                db.execute(text("SELECT version_num FROM alembic_version"))
        except exc.ProgrammingError as error:
            raise StorageUnavailable("The database has no tables.") from error

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.dispose()

    def open_readers(self) -> int:
        """How many request-scoped db sessions are open. If some leak, this number grows."""
        return len(self._readers.registry.registry)

    def _reader_key(self) -> tuple[str, int]:
        return self._binder.current().request_id, threading.get_ident()


def make_engine(url: str) -> Engine:
    """Its errors do not show the parameters: errors go to the log, and what people wrote must not."""
    if url.startswith("sqlite"):
        engine = create_engine(
            url,
            hide_parameters=True,
            max_overflow=-1,  # a SQLite connection is only an open file, and each thread has at most one
            connect_args={"timeout": LOCK_WAIT_SECONDS, "check_same_thread": False},
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_size=MAX_CONNECTIONS // 3,
            max_overflow=MAX_CONNECTIONS - MAX_CONNECTIONS // 3,
            pool_timeout=QUEUE_WAIT_SECONDS,
            pool_pre_ping=True,
            connect_args={"connect_timeout": int(CONNECT_SECONDS)},
        )
        event.listen(engine, "connect", _configure_postgres)
    event.listen(engine, "connect", _remember_pid)
    event.listen(engine, "checkout", _refuse_inherited)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    _make_files_private(connection)
    connection.isolation_level = None  # transactions are begun by _begin_sqlite, not by the driver
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _make_files_private(connection: sqlite3.Connection) -> None:
    """Before SQLite makes the other two files, which get the mode of the first."""
    for _, _, file in connection.execute("PRAGMA database_list").fetchall():
        if file:
            make_private(Path(file + ending) for ending in ("", "-wal", "-shm"))


def _configure_postgres(connection: Any, record: Any) -> None:
    """A transaction that never ends must not make all others wait for ever for the rows it has locked."""
    connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS:.0f}s'")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the write lock when it begins. A reader that turns into a writer later fails under load,
    however long the timeout is.
    """
    writes = connection.get_execution_options().get("agentapp_writes")
    if writes and _try_to_begin_writing(connection):
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _try_to_begin_writing(connection: Connection) -> bool:
    """Begin a transaction with the write lock, if it can be had in time. Returns whether it was.

    SQLite itself sleeps between its tries for up to a tenth of a second. A process that sleeps for so long is
    often too late again.
    """
    cursor = connection.connection.cursor()
    ends = time.monotonic() + LOCK_WAIT_SECONDS
    try:
        cursor.execute("PRAGMA busy_timeout = 0")
        while time.monotonic() < ends:
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    return False
                time.sleep(LOCK_RETRY_SECONDS)
            else:
                return True
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_SECONDS * 1000:.0f}")
        cursor.close()


def _remember_pid(connection: Any, record: Any) -> None:
    record.info["pid"] = os.getpid()


def _refuse_inherited(connection: Any, record: Any, proxy: Any) -> None:
    """A connection that was opened before a fork belongs to the parent. Two processes on one connection would
    get each other's answers.
    """
    if record.info["pid"] != os.getpid():
        record.dbapi_connection = proxy.dbapi_connection = None
        raise exc.DisconnectionError("this connection was opened by another process")


@contextmanager
def _translating_errors(disk: Disk) -> Iterator[None]:
    """An error of the database becomes `StorageUnavailable`. An error of our own statements stays one."""
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:
        if getattr(error.orig, "sqlstate", "") != POSTGRES_UNDEFINED_TABLE:
            raise
        raise StorageUnavailable("The database has no tables.") from error
    except (exc.DBAPIError, exc.TimeoutError) as error:
        if took_too_long(error):
            raise StatementTimeout("The database took too long over this. Nothing was lost.") from error
        if is_disk_full(error):
            raise disk.full(str(getattr(error, "orig", error))) from error
        raise StorageUnavailable("The database cannot be reached right now. Nothing was lost.") from error
