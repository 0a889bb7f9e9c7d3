"""The processes that serve, as each of them tells about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Insert, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.storage.db import Database
from agentapp.storage.operator_models import WorkerRow
from agentapp.storage.schema import HEAD
from agentapp.storage.statements import Statement
from agentapp.telemetry.conditions import SILENT_AFTER, SilentWorker

_COLUMNS = ("id", "host", "pid", "started_at", "seen_at", "numbers", "build", "knows_revision")


@dataclass(frozen=True, slots=True)
class Worker:
    """``numbers`` are what it told with its last report: see `telemetry.jobs.ReportWorker`."""

    id: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    is_silent: bool
    numbers: Mapping[str, float]
    build: str = ""  # unknown, of one from before revision 0012

    def number(self, name: str) -> float:
        """0 if it did not tell: it may be of another version."""
        return self.numbers.get(name, 0.0)


def _replacing(insert: Insert) -> Statement:
    new: sqlite.Insert | postgresql.Insert = insert  # type: ignore[assignment]
    changed = {"seen_at": new.excluded.seen_at, "numbers": new.excluded.numbers}
    return Statement(new.on_conflict_do_update(index_elements=["id"], set_=changed), _COLUMNS)


class WorkerStore:
    """``build`` is which agentapp this worker runs."""

    def __init__(self, db: Database, build: str = "") -> None:
        self._db, self._build = db, build[:64]
        insert = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[db.engine.dialect.name]
        self._write = _replacing(insert(WorkerRow))

    def report(
        self, worker: str, host: str, pid: int, started_at: datetime, numbers: Mapping[str, float]
    ) -> None:
        """How this worker is now. Its row is made with the first report."""
        values = {"id": worker[:64], "host": host[:64], "pid": pid, "started_at": started_at}
        with self._db.transaction() as db:
            told = {"numbers": dict(numbers), "build": self._build, "knows_revision": HEAD}
            db.run_later(self._write, {**values, **told, "seen_at": db.clock.utc_now()})

    def silent_since(self, moment: datetime) -> list[SilentWorker]:
        """Those of which nothing was heard since then. There are few rows."""
        columns = WorkerRow.id, WorkerRow.host, WorkerRow.pid, WorkerRow.seen_at
        query = select(*columns).where(WorkerRow.seen_at < moment).order_by(WorkerRow.id)
        with self._db.reading() as db:
            return [SilentWorker(*row) for row in db.execute(query)]

    def remove(self, worker: str) -> None:
        """It ends."""
        with self._db.writing() as db:
            db.execute(delete(WorkerRow).where(WorkerRow.id == worker[:64]))

    def listed(self, after: Sequence[str | int] | None, count: int) -> Sequence[Worker]:
        """By host and process. ``after`` has both, and the id, of the last one of the page before."""
        order = WorkerRow.host, WorkerRow.pid, WorkerRow.id
        query = select(WorkerRow).order_by(*order).limit(count)
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        now = self._db.clock.utc_now()
        with self._db.reading() as db:
            return [_worker(row, now) for row in db.scalars(query)]


def _worker(row: WorkerRow, now: datetime) -> Worker:
    is_silent = now - row.seen_at > SILENT_AFTER
    build = row.build or ""
    return Worker(row.id, row.host, row.pid, row.started_at, row.seen_at, is_silent, row.numbers, build)
