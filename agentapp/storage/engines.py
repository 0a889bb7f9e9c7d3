"""The engines: how connections are opened, and which of them may be taken from the pool."""

from __future__ import annotations

import os
import select
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc

from agentapp.instance import make_private
from agentapp.storage.disk import PRIMARY_CODE
from agentapp.storage.idle_pool import IdlePool
from agentapp.storage.postgres_connector import PostgresConnector
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.write_token import WriteToken

LOCK_WAIT_SECONDS = 10.0  # for SQLite's lock, which another process holds
# For the threads of this process that came first. It is long, so that when many come at once all of them are
# served, though some are late.
QUEUE_WAIT_SECONDS = 30.0
# Transactions of one process that write to PostgreSQL at once. All turns of a tenant lock its cell, and who
# has locked it needs Python's global lock again to go on: the more threads are at it, the longer everybody
# waits, with a connection and the rows of a chat in hand. With few, the others wait here and hold nothing.
POSTGRES_WRITERS = 5
KEPT_SQLITE_CONNECTIONS = 8  # of one process, for reading
# When the log of SQLite has so many pages (16 MiB), they are copied into the database. A turn writes fifty
# pages, most of them again and again: the more are copied at once, the less there is to copy.
CHECKPOINT_PAGES = 4000


def make_engine(url: str) -> Engine:
    """Its errors do not show the parameters: errors go to the log, and what people wrote must not."""
    if url.startswith("sqlite"):
        # A SQLite connection is only an open file, and each thread has at most one. Those used last are used
        # first: they have the statements and the pages of the file in memory.
        return _make_sqlite_engine(
            url, pool_size=KEPT_SQLITE_CONNECTIONS, max_overflow=-1, pool_use_lifo=True
        )
    engine, _ = make_postgres_engine(url, PostgresOptions())
    return engine


def make_postgres_engine(url: str, options: PostgresOptions) -> tuple[Engine, PostgresConnector]:
    """With what opens its connections."""
    engine = create_engine(
        url,
        hide_parameters=True,
        poolclass=IdlePool,
        pool_size=options.pool,
        max_overflow=0,
        pool_timeout=QUEUE_WAIT_SECONDS,
        pool_use_lifo=True,
    )
    connector = PostgresConnector(engine, options)
    _guard_connections(engine)
    event.listen(engine, "checkout", refuse_closed)
    return engine, connector


def pool_size(engine: Engine) -> int:
    """Connections of one process that are kept, or may be open. On SQLite there may be more for a moment."""
    if engine.dialect.name == "sqlite":
        return KEPT_SQLITE_CONNECTIONS + 1
    pool: Any = engine.pool
    size: int = pool.size()
    return size


def make_sqlite_writer(url: str, token: WriteToken) -> Engine:
    """The engine for the one connection that writes. Its transactions take the write lock when they begin: a
    reader that turns into a writer later fails under load, however long the timeout is.
    """
    engine = _make_sqlite_engine(url, pool_size=1, max_overflow=0)
    event.listen(engine, "connect", partial(_never_sleep_for_lock, token))
    return engine


def _make_sqlite_engine(url: str, **pool: Any) -> Engine:
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": LOCK_WAIT_SECONDS, "check_same_thread": False},
        **pool,
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    _guard_connections(engine)
    return engine


def _guard_connections(engine: Engine) -> None:
    event.listen(engine, "connect", _remember_pid)
    event.listen(engine, "checkout", _refuse_inherited)


def _configure_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    _make_files_private(connection)
    connection.isolation_level = None  # transactions are begun by _begin_sqlite, not by the driver
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        # What is deleted is overwritten. The pages are written in any case: a turn costs no more by it.
        "secure_delete = ON",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _make_files_private(connection: sqlite3.Connection) -> None:
    """Before SQLite makes the other two files, which get the mode of the first."""
    for _, _, file in connection.execute("PRAGMA database_list").fetchall():
        if file:
            make_private(Path(file + ending) for ending in ("", "-wal", "-shm"))


def _never_sleep_for_lock(token: WriteToken, connection: sqlite3.Connection, record: Any) -> None:
    """SQLite itself sleeps between its tries for up to a tenth of a second. A process that sleeps for so long
    is often too late again: see `begin_writing`.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("PRAGMA temp_store = MEMORY")  # for `Together`: otherwise its views would be a file
    record.info["writes"] = token


def _begin_sqlite(connection: Connection) -> None:
    token = connection.connection.info.get("writes")
    if token or connection.get_execution_options().get("agentapp_writes"):
        begin_writing(connection.connection.cursor(), token)
    else:
        connection.exec_driver_sql("BEGIN")


def begin_writing(cursor: Any, token: WriteToken | None = None) -> None:
    """Begin a transaction with SQLite's write lock, as soon as it can be had."""
    token = token or WriteToken()
    ends = time.monotonic() + LOCK_WAIT_SECONDS
    token.take()
    while True:
        try:
            cursor.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            # There are several kinds of busy: one is a file that another process has just opened anew.
            if error.sqlite_errorcode & PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
        # The driver asks for the error after the fact. If another thread has let go of an old cursor of this
        # connection in between, it finds none: then nothing was begun, and nothing is raised.
        if cursor.connection.in_transaction:
            return
        if time.monotonic() > ends:
            raise sqlite3.OperationalError("no transaction could be begun")
        token.wait()


def _remember_pid(connection: Any, record: Any) -> None:
    record.info["pid"] = os.getpid()


def _refuse_inherited(connection: Any, record: Any, proxy: Any) -> None:
    """A connection that was opened before a fork belongs to the parent. Two processes on one connection would
    get each other's answers.
    """
    if record.info["pid"] != os.getpid():
        record.dbapi_connection = proxy.dbapi_connection = None
        raise exc.DisconnectionError("this connection was opened by another process")


def refuse_closed(connection: Any, record: Any, proxy: Any) -> None:
    """A server that was restarted has closed the connections of the pool. This sees it without asking the
    server: nothing is to be read from a connection that is idle, except its end.
    """
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if connection.closed or idle.poll(0):
        raise exc.DisconnectionError("the server has closed this connection")
