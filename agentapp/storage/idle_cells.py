"""Cells of the guardrails that nobody misses: of chats that are gone, and those that count for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Select, and_, delete, exists, or_, select, tuple_

from agentapp.guardrails.cell import Cells, Key
from agentapp.retention.clean_up import MOST_ROWS, Swept
from agentapp.retention.keeping import IDLE_CELLS_KEPT
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, GuardrailCell, User

KIND = "idle guardrail cells"
KEPT_SCOPES = ("provider", "tenant")  # there are few, and they have much to tell


class _Row(NamedTuple):
    scope: str
    id: str
    state: str
    is_orphan: bool


class SweepCells:
    """Whether a cell is idle is asked again under its lock. The row is the truth: no worker goes by a cell
    whose row is gone.
    """

    kind = KIND

    def __init__(self, db: Database, cells: Cells) -> None:
        self._db, self._cells = db, cells
        self._scopes = sorted(cells.scopes - set(KEPT_SCOPES))

    def sweep(self, now: datetime, *, dry_run: bool) -> Iterator[Swept]:
        last: tuple[str, str] | None = ("", "")
        while last is not None:
            idle, last = self._idle_after(last, now)
            if idle and not dry_run:
                idle = self._remove(idle, now)
            yield Swept(self.kind, None, len(idle))

    def _idle_after(self, last: tuple[str, str], now: datetime) -> tuple[list[Key], tuple[str, str] | None]:
        """The idle ones of the next rows, and the last of these rows; None if there are no more."""
        cell = GuardrailCell
        key = tuple_(cell.scope, cell.id)
        query = (
            _candidates(self._scopes, now).where(key > last).order_by(cell.scope, cell.id).limit(MOST_ROWS)
        )
        with self._db.reading() as db:
            rows = [_Row(*row) for row in db.execute(query)]
        self._db.release()
        idle = self._idle(rows)
        return idle, (rows[-1].scope, rows[-1].id) if len(rows) == MOST_ROWS else None

    def _remove(self, keys: Sequence[Key], now: datetime) -> list[Key]:
        cell = GuardrailCell
        query = _candidates(self._scopes, now).where(tuple_(cell.scope, cell.id).in_(keys))
        with self._db.writing() as db:
            rows = [_Row(*row) for row in db.execute(query.with_for_update(skip_locked=True, of=cell))]
            idle = self._idle(rows)
            if idle:
                db.execute(delete(cell).where(tuple_(cell.scope, cell.id).in_(idle)))
        return idle

    def _idle(self, rows: Sequence[_Row]) -> list[Key]:
        found = []
        for row in rows:
            key = Key(row.scope, row.id)
            if row.is_orphan or self._cells.is_idle(self._cells.load(key, row.state), self._db.clock.now()):
                found.append(key)
        return found


def _candidates(scopes: Sequence[str], now: datetime) -> Select[str, str, str, bool]:
    """Not changed for days. Of a chat that is there, only one that has spent nothing: what it has counts for
    ever.
    """
    cell, before = GuardrailCell, now - IDLE_CELLS_KEPT
    of_chat = and_(
        ChatSession.id == cell.id, ChatSession.tenant_id == User.tenant_id, ChatSession.user_id == User.id
    )
    is_orphan = and_(cell.scope == "session", ~exists(select(ChatSession.id).join(User, of_chat)))
    return select(cell.scope, cell.id, cell.state, is_orphan.label("is_orphan")).where(
        cell.scope.in_(scopes),
        cell.updated_at < before.timestamp(),
        or_(cell.scope != "session", cell.state.not_like('%"spent":%'), is_orphan),
    )
