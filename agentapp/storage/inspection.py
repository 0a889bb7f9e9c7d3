"""A look at the database that leaves it as it is: it makes no file, changes no mode and opens no log."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, exc, make_url, text

from agentapp.errors import StorageUnavailable
from agentapp.storage.clock import DatabaseClock
from agentapp.storage.schema import MISSING, engine_for, first_line, problem_in, revision_of


@dataclass(frozen=True, slots=True)
class Inspected:
    """``seconds`` is how long it took to connect and to ask for something. ``clock_ahead`` is by how many the
    server's clock is ahead of ours: None if it has none of its own.
    """

    seconds: float
    schema_problem: str | None
    clock_ahead: float | None
    revision: str = ""


def sqlite_file(url: str) -> Path | None:
    """The file of the database, if it is one."""
    return Path(make_url(url).database or "") if url.startswith("sqlite") else None


def inspect_database(url: str) -> Inspected:
    """Raises `StorageUnavailable` if it cannot be reached."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return Inspected(0.0, MISSING, None)
    engine = engine_for(url) if file is None else _reading_engine(file)
    try:
        began = time.monotonic()
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            seconds = time.monotonic() - began
            ahead = _clock_ahead(connection) if file is None else None
            revision = revision_of(connection) or ""
            return Inspected(seconds, problem_in(connection), ahead, revision)
    except exc.DBAPIError as error:
        raise StorageUnavailable(f"cannot use the database: {first_line(error)}") from error
    finally:
        engine.dispose()


def _clock_ahead(connection: Connection) -> float:
    clock = DatabaseClock()
    clock.read(connection.exec_driver_sql)
    return -(clock.host_ahead() or 0.0)


def _reading_engine(file: Path) -> Engine:
    return create_engine("sqlite://", creator=partial(_open_to_read, file), poolclass=NullPool)


def _open_to_read(file: Path) -> sqlite3.Connection:
    """Without a log beside it, nobody has it open, and SQLite is told not to make one."""
    is_open = Path(f"{file}-wal").exists()
    mode = "mode=ro" if is_open else "mode=ro&immutable=1"
    return sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True)
