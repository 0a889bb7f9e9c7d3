"""The turns that run now, as admins see them: whose they are and where they run, not what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select, tuple_

from agentapp.errors import NotFound
from agentapp.isolation import Scope, UserScope
from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.models import LiveTurn, Tenant, Turn, User
from agentapp.storage.operator_models import WorkerRow

HAS_ENDED = "This turn has ended."


@dataclass(frozen=True, slots=True)
class RunningTurnFacts:
    """``agent`` is the one that it began with; empty is the front agent. ``host`` and ``pid`` are those of
    its worker; None if that has not reported, or is gone.
    """

    id: str
    tenant: str
    user: str
    user_id: str
    agent: str
    request_id: str
    started_at: datetime
    lease_until: datetime
    stop_asked: bool
    host: str | None
    pid: int | None


class RunningTurns:
    def __init__(self, db: Database) -> None:
        self._db = db

    def listed(
        self, tenant_id: str | None, after: tuple[datetime, str] | None, count: int
    ) -> Sequence[RunningTurnFacts]:
        """The oldest first. ``after`` is when the last one of the page before began, and its id."""
        columns = (
            *(LiveTurn.turn_id, Tenant.name, User.name, User.id, Turn.agent, Turn.request_id),
            *(Turn.started_at, LiveTurn.lease_until, LiveTurn.stop_asked, WorkerRow.host, WorkerRow.pid),
        )
        of_turn = Turn.id == LiveTurn.turn_id, Turn.tenant_id == LiveTurn.tenant_id
        query = (
            select(*columns)
            .select_from(LiveTurn)
            .outerjoin(WorkerRow, WorkerRow.id == LiveTurn.worker)
            .where(*of_turn, Turn.user_id == LiveTurn.user_id)
            .where(User.id == LiveTurn.user_id, Tenant.id == LiveTurn.tenant_id)
            .order_by(Turn.started_at, Turn.id)
            .limit(count)
        )
        if tenant_id is not None:
            query = query.where(LiveTurn.tenant_id == tenant_id)
        if after is not None:
            query = query.where(tuple_(Turn.started_at, Turn.id) > tuple_(*after))
        with self._db.reading() as db:
            return [RunningTurnFacts(*row) for row in db.execute(query)]

    def stop(self, by: UserScope, tenant_id: str | None, turn_id: str) -> tuple[Scope, str]:
        """Leave a request for the worker that plays it. Whose turn it is, and the name of that worker."""
        query = select(LiveTurn).where(LiveTurn.turn_id == turn_id)
        if tenant_id is not None:
            query = query.where(LiveTurn.tenant_id == tenant_id)
        with self._db.writing() as db:
            row = db.scalar(query.with_for_update())
            if row is None:
                raise NotFound(HAS_ENDED)
            owner = replace(by, tenant_id=row.tenant_id, user_id=row.user_id)
            found = owner.within(row.session_id), row.worker
            if not row.stop_asked:
                row.stop_asked = True
                entry = AuditEntry.of(by, "turn-stopped", f"turn:{turn_id}", user=row.user_id)
                add_entry(db, replace(entry, tenant_id=row.tenant_id))
        return found
