"""The database: whether it answers, its schema, its clock, and the disk it is on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname

from agentapp.cli.checks.line import Line, do, note, ok
from agentapp.config import Settings
from agentapp.errors import AgentappError
from agentapp.server.options import ServerOptions
from agentapp.storage.connection_budget import find_budget
from agentapp.storage.disk import free_bytes
from agentapp.storage.engines import make_postgres_engine
from agentapp.storage.inspection import Inspected, inspect_database, sqlite_file
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.schema import HEAD, MISSING

SLOW_SECONDS = 0.5  # to connect and to ask for something
CLOCK_SECONDS = 1.0  # leases of turns are compared by the clocks of several machines
NEARLY_FULL = 4  # times the reserve


def check_database(settings: Settings) -> Iterator[Line]:
    file = sqlite_file(settings.database_url)
    if file is not None:
        yield from _disk(file, settings.disk_reserve_bytes)
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            yield do("database", f"{file} cannot be written by this user: run this as the server's user")
            return
    try:
        found = inspect_database(settings.database_url)
    except AgentappError as error:
        yield do("database", f"{error}")
        return
    if found.schema_problem == MISSING:
        yield do("schema", f"{MISSING}, or start `agentapp serve`, which does that")
        if file is not None:
            return
    elif found.schema_problem:
        yield do("schema", found.schema_problem)
    else:
        yield ok("schema", f"at revision {HEAD}, as this agentapp needs it")
    yield _answers(found)
    yield _clock(found)


def check_connections(settings: Settings, server: ServerOptions) -> Iterator[Line]:
    """Whether all workers of all hosts find room on PostgreSQL at once."""
    if sqlite_file(settings.database_url) is None:
        yield _connections(settings, server)


def _connections(settings: Settings, server: ServerOptions) -> Line:
    engine, connector = make_postgres_engine(settings.database_url, PostgresOptions.of(settings))
    try:
        found = find_budget(engine, gethostname(), server.workers, settings.db_pool)
    except AgentappError as error:
        return do("connections", f"{error}")
    finally:
        engine.dispose()
    if connector.is_pooled:
        return note("connections", "through a pooler: its max_client_conn and pool sizes are what counts")
    if found.fits:
        return ok("connections", f"{found}")
    return do("connections", f"{found}: lower AGENTAPP_DB_POOL, raise max_connections, or use PgBouncer")


def _answers(found: Inspected) -> Line:
    took = f"answers in {found.seconds * 1000:.0f} ms"
    if found.seconds < SLOW_SECONDS:
        return ok("database", took)
    return note("database", f"{took}: every message waits for it several times, so it should be nearer")


def _clock(found: Inspected) -> Line:
    if found.clock_ahead is None:
        return ok("clock", "SQLite has that of this machine")
    if abs(found.clock_ahead) <= CLOCK_SECONDS:
        return ok("clock", f"within {CLOCK_SECONDS:g} s of the database server's")
    where = "ahead of" if found.clock_ahead > 0 else "behind"
    text = f"the database server's clock is {abs(found.clock_ahead):.1f} s {where} this machine's"
    return do("clock", f"{text}: keep both in step (NTP)")


def _disk(file: Path, reserve: int | None) -> Iterator[Line]:
    there = next(each for each in (file, *file.parents) if each.exists())
    free = free_bytes(there)
    said = f"{free / 1e6:,.0f} MB free at {there}"
    if reserve is None:
        yield ok("disk", said)
    elif free < reserve:
        text = f"{said}, and {reserve / 1e6:,.0f} MB are kept in reserve"
        yield do("disk", f"{text}: nothing new is begun until there is room")
    elif free < NEARLY_FULL * reserve:
        yield note("disk", f"{said}; below {reserve / 1e6:,.0f} MB nothing new is begun")
    else:
        yield ok("disk", said)
