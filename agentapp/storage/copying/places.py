"""The two databases of a copy, as a person names them: how each is opened, and what must be true of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, exc, select, text

from agentapp.errors import BadRequest, SettingError, StorageUnavailable
from agentapp.parsing import supported_database_url
from agentapp.storage import schema
from agentapp.storage.clock import utc_now_at
from agentapp.storage.models import LiveTurn, Tenant
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.conditions import SILENT_AFTER

# A copy takes as long as it takes. Nobody waits for rows of a database that no server uses.
NO_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True)
class Database:
    """``role`` is what it is to the copy. ``name`` has no password."""

    role: Literal["FROM", "TO"]
    url: str
    engine: Engine

    @property
    def name(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        return Path(self.engine.url.database or "") if self.engine.dialect.name == "sqlite" else None

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Everything as it is at this moment, whatever others write."""
        options: dict[str, Any] = {"agentapp_migrates": True}
        is_postgres = self.file is None
        if is_postgres:
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._opened(**options) as connection:
            connection.execute(text("SELECT 1" if is_postgres else "SELECT count(*) FROM sqlite_master"))
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction."""
        options = {"agentapp_migrates": True, "agentapp_writes": True}
        with self._opened(**options) as connection:
            yield connection

    @contextmanager
    def _opened(self, **options: Any) -> Iterator[Connection]:
        """Errors of the database are one line that says which of the two it is."""
        driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                _lift_limits(connection)
                yield connection
        except exc.DBAPIError as error:
            raise StorageUnavailable(f"{self.role}: {schema.first_line(error)}") from error
        except driver_error as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise StorageUnavailable(f"{self.role}: {line}") from error


def named(role: Literal["FROM", "TO"], text: str) -> Database:
    """By its URL, or by the path of SQLite's file."""
    url = text if "://" in text else f"sqlite:///{text}"
    try:
        supported_database_url(url)
        return Database(role, url, schema.engine_for(url))
    except SettingError as error:
        raise BadRequest(f"{role}: {str(error).partition(': ')[2]}.") from error
    except ValueError as error:
        raise BadRequest(f"{role}: {error}, or be the path of SQLite's file.") from error


def check_source(source: Database) -> None:
    """It has the schema of this code, and no server uses it."""
    if source.file is not None and not source.file.is_file():
        raise BadRequest(f"FROM: there is no file {source.file}.")
    with source.snapshot() as connection:
        if problem := schema.problem_in(connection):
            raise BadRequest(f"FROM: {problem} (AGENTAPP_DATABASE_URL says on which database).")
        if not has_our_schema(connection):
            raise BadRequest("FROM: a newer agentapp has changed its schema. Copy it with that one.")
        refuse_running(connection)


def refuse_running(connection: Connection) -> None:
    """What a server does on the source from now on would be missing in the copy."""
    now = utc_now_at(connection)
    for row in connection.execute(select(WorkerRow.host, WorkerRow.pid, WorkerRow.seen_at)):
        if now - row.seen_at < SILENT_AFTER:
            again = (SILENT_AFTER - (now - row.seen_at)).total_seconds()
            raise BadRequest(
                f"FROM: a server runs on it (process {row.pid} on {row.host}). Stop it first. "
                f"If it was killed, try again in {again:.0f} s."
            )
    for lease_until in connection.scalars(select(LiveTurn.lease_until)):
        if lease_until > now:
            raise BadRequest(
                "FROM: a message is being answered, so a server runs on it. Stop it first. "
                f"If it was killed, try again in {(lease_until - now).total_seconds():.0f} s."
            )


def check_apart(source: Database, target: Database) -> None:
    """Not the same database under two names."""
    if source.file is not None and target.file is not None:
        is_same = target.file.exists() and os.path.samefile(source.file, target.file)
    elif source.file is None and target.file is None:
        is_same = _postgres_identity(source) == _postgres_identity(target)
    else:
        is_same = False
    if is_same:
        raise BadRequest("FROM and TO are the same database.")


def has_our_schema(connection: Connection) -> bool:
    """Exactly: of a newer one that we could work with, we would leave something behind."""
    found = connection.scalars(text("SELECT version_num FROM alembic_version")).all()
    return list(found) == [schema.HEAD]


def identity_of(connection: Connection) -> str:
    """By what a database is known again, wherever it was moved: its first tenant, whose id is random."""
    oldest = select(Tenant.id).order_by(Tenant.created_at, Tenant.id).limit(1)
    return connection.scalar(oldest) or ""


def _postgres_identity(database: Database) -> tuple[object, ...]:
    """Of the running server and the database in it."""
    query = "SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()"
    with database.snapshot() as connection:
        return tuple(connection.execute(text(query)).one())


def _lift_limits(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        for name in NO_LIMITS:
            connection.execute(text(f"SET LOCAL {name} = 0"))
