"""Violations of isolation, as they stand in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.models import Tenant
from agentapp.storage.operator_models import AuditRow
from agentapp.telemetry.violations import FoundViolation

VIOLATED = "isolation-violated"


@dataclass(frozen=True, slots=True)
class SeenViolation:
    """``tenant`` is a name; empty if the request was nobody's."""

    id: int
    at: datetime
    kind: str
    request_id: str
    tenant: str


class ViolationLog:
    """A `telemetry.jobs.ViolationStore`. The subject of a row is the kind of violation."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, found: Sequence[FoundViolation]) -> None:
        with self._db.writing() as db:
            for each in found:
                tenant_id, request_id = each.tenant_id or None, each.request_id or "-"
                add_entry(db, AuditEntry(VIOLATED, each.kind, tenant_id, request_id=request_id))

    def page(self, tenant_id: str | None, before: int | None, count: int) -> list[SeenViolation]:
        """The newest first, beginning after that one. There are few of this action, so its index finds them;
        the tenant is compared in a way that makes no index of everything that a tenant did look better.
        """
        row = AuditRow
        query = (
            select(row.id, row.at, row.subject, row.request_id, Tenant.name)
            .outerjoin(Tenant, Tenant.id == row.tenant_id)
            .where(row.action == VIOLATED)
            .order_by(row.id.desc())
            .limit(count)
        )
        if before is not None:
            query = query.where(row.id < before)
        if tenant_id is not None:
            query = query.where(func.coalesce(row.tenant_id, "") == tenant_id)
        with self._db.reading() as db:
            return [SeenViolation(*found[:4], found[4] or "") for found in db.execute(query)]
