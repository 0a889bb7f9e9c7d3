"""Whether all hosts together want more connections than PostgreSQL lets in."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, DateTime, Engine, exc, func, select, text

from agentapp.errors import StorageUnavailable
from agentapp.storage.operator_models import WorkerRow
from agentapp.storage.schema import first_line
from agentapp.telemetry.conditions import SILENT_AFTER

# Besides its pool a worker has one for /readyz.
BESIDES_THE_POOL = 1
# Of the server, of this role and of this database, whichever is least. -1 is no limit.
_ALLOWED = text(
    "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    " - coalesce(current_setting('reserved_connections', true)::int, 0),"
    " (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),"
    " (SELECT datconnlimit FROM pg_database WHERE datname = current_database())"
)


@dataclass(frozen=True, slots=True)
class ConnectionBudget:
    """``elsewhere`` is what the workers of ``other_hosts`` may open, as they told lately."""

    allowed: int
    workers: int
    pool: int
    other_hosts: int
    elsewhere: int

    @property
    def wanted(self) -> int:
        return self.workers * (self.pool + BESIDES_THE_POOL) + self.elsewhere

    @property
    def fits(self) -> bool:
        return self.wanted <= self.allowed

    def __str__(self) -> str:
        here = f"{self.workers} workers x ({self.pool} + {BESIDES_THE_POOL}) connections"
        others = f" and {self.elsewhere} of {self.other_hosts} other hosts" if self.other_hosts else ""
        return f"{here}{others} are {self.wanted}, and PostgreSQL lets {self.allowed} in"


def find_budget(engine: Engine, host: str, workers: int, pool: int) -> ConnectionBudget:
    """For so many workers on this host. The engine is one to PostgreSQL."""
    try:
        with engine.connect() as connection:
            total, *limits = connection.execute(_ALLOWED).one()
            others = _pools_elsewhere(connection, host)
    except exc.DBAPIError as error:
        raise StorageUnavailable(f"cannot use the database: {first_line(error)}") from error
    allowed = min([total, *(limit for limit in limits if limit is not None and limit >= 0)])
    elsewhere = sum(size + BESIDES_THE_POOL for _, size in others)
    return ConnectionBudget(allowed, workers, pool, len({name for name, _ in others}), elsewhere)


def _pools_elsewhere(connection: Connection, host: str) -> list[tuple[str, int]]:
    now = func.clock_timestamp(type_=DateTime(timezone=True))
    lately = WorkerRow.host != host[:64], WorkerRow.seen_at >= now - SILENT_AFTER
    rows = connection.execute(select(WorkerRow.host, WorkerRow.numbers).where(*lately))
    return [(name, int(numbers.get("db_pool", 0))) for name, numbers in rows]
