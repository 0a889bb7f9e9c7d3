"""The audit log: who did what, and when. Rows are only ever added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from agentapp.isolation import RequestScope, UserScope
from agentapp.storage.clock import now_in
from agentapp.storage.db import Database
from agentapp.storage.operator_models import AuditRow
from agentapp.storage.statements import Statement

ADD_ENTRY = Statement(insert(AuditRow), tuple(c.name for c in AuditRow.__table__.columns if c.name != "id"))


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """``action`` is one of `audit_actions.ACTIONS`. ``user_id`` is who did it, ``tenant_id`` whose admins
    may see it, ``subject`` what it was done to, as ``user:ID``. ``detail`` has numbers, ids and names of
    limits, roles and the like: never the name of a person, an address, a password, or what somebody wrote,
    but for the ``reason`` that whoever changes a breaker gives for the log.
    ``at`` is when it was, if that is not now.
    """

    action: str
    subject: str = ""
    tenant_id: str | None = None
    user_id: str | None = None
    request_id: str = "-"
    detail: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None

    @classmethod
    def of(cls, scope: RequestScope, action: str, subject: str = "", **detail: Any) -> AuditEntry:
        """What was done in a request; by whom, if it is somebody's."""
        tenant_id, user_id = None, None
        if isinstance(scope, UserScope):
            tenant_id, user_id = scope.tenant_id, scope.user_id
        return cls(action, subject, tenant_id, user_id, scope.request_id, detail)

    def values(self, now: datetime) -> dict[str, Any]:
        """The columns of its row."""
        return {
            "at": self.at or now,
            "tenant_id": self.tenant_id,
            "user_id": self.user_id,
            "action": self.action,
            "subject": self.subject[:160],
            "request_id": self.request_id[:64],
            "detail": dict(self.detail),
        }


def add_entry(db: Session, entry: AuditEntry) -> None:
    """As part of the transaction that does what the entry tells: there is never one without the other."""
    db.add(AuditRow(**entry.values(now_in(db))))


class AuditLog:
    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, *entries: AuditEntry) -> None:
        """In a transaction of their own."""
        with self._db.transaction() as db:
            db.run_many(ADD_ENTRY, [entry.values(db.clock.utc_now()) for entry in entries])
