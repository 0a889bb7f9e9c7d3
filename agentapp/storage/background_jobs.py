"""Jobs that one worker of all does at a time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, CursorResult, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.storage.db import Database
from agentapp.storage.operator_models import BackgroundJob


class BackgroundJobs:
    """A `retention.schedule.DueJobs`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def announce(self, name: str, first_at: datetime) -> None:
        values = {"name": name, "next_at": first_at}
        new = {
            "sqlite": sqlite.insert(BackgroundJob).values(values).on_conflict_do_nothing(),
            "postgresql": postgresql.insert(BackgroundJob).values(values).on_conflict_do_nothing(),
        }
        with self._db.writing() as db:
            db.execute(new[self._db.engine.dialect.name])

    def is_due(self, name: str, now: datetime) -> bool:
        with self._db.reading() as db:
            return db.scalar(select(BackgroundJob.name).where(*_due(name, now))) is not None

    def claim(self, name: str, now: datetime, next_at: datetime) -> bool:
        with self._db.writing() as db:
            claimed = db.execute(update(BackgroundJob).where(*_due(name, now)).values(next_at=next_at))
            return isinstance(claimed, CursorResult) and claimed.rowcount == 1


def _due(name: str, now: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return BackgroundJob.name == name, BackgroundJob.next_at <= now
