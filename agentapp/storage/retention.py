"""For how long each tenant's chats and audit rows are kept, and what a clean-up tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Select, func, select

from agentapp.errors import NotFound
from agentapp.isolation import RequestScope
from agentapp.retention.keeping import Keeping, TenantKeeping
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.models import Tenant
from agentapp.storage.operator_models import AuditRow

_COLUMNS = (Tenant.id, Tenant.name, Tenant.retain_sessions_days, Tenant.retain_audit_days)


class RetentionStore:
    """``chats`` and ``audit`` are the days that the settings say."""

    def __init__(self, db: Database, chats: int | None, audit: int | None) -> None:
        self._db, self.chats, self.audit = db, chats, audit

    @property
    def of_nobody(self) -> Keeping:
        """Of audit rows that belong to no tenant."""
        return Keeping(self.audit)

    def tenants(self, tenant_id: str | None, after: str, count: int) -> list[TenantKeeping]:
        """By name. With a ``tenant_id`` only that one."""
        query = select(*_COLUMNS).where(Tenant.name > after).order_by(Tenant.name).limit(count)
        return self._found(query if tenant_id is None else query.where(Tenant.id == tenant_id))

    def all_tenants(self) -> list[TenantKeeping]:
        return self._found(select(*_COLUMNS).order_by(Tenant.name))

    def tenant(self, tenant_id: str) -> TenantKeeping:
        found = self._found(select(*_COLUMNS).where(Tenant.id == tenant_id))
        if not found:
            raise NotFound("There is no such tenant.")
        return found[0]

    def old_audit_rows(self, tenant_id: str, before: datetime, most: int) -> int:
        """How many there are, counted to ``most``."""
        old = select(AuditRow.id).where(AuditRow.tenant_id == tenant_id, AuditRow.at < before).limit(most)
        with self._db.reading() as db:
            return db.scalar(select(func.count()).select_from(old.subquery())) or 0

    def change(self, tenant_id: str, chats: int | None, audit: int | None, by: RequestScope) -> bool:
        """Whether that is another than before. None is what the settings say, 0 keeps everything."""
        with self._db.writing() as db:
            row = db.scalar(select(Tenant).where(Tenant.id == tenant_id).with_for_update())
            if row is None:
                raise NotFound("There is no such tenant.")
            was = {"chats_from": row.retain_sessions_days, "audit_from": row.retain_audit_days}
            if (row.retain_sessions_days, row.retain_audit_days) == (chats, audit):
                return False
            row.retain_sessions_days, row.retain_audit_days = chats, audit
            detail = {**was, "chats_to": chats, "audit_to": audit}
            entry = AuditEntry.of(by, "retention-changed", f"tenant:{tenant_id}", **detail)
            add_entry(db, replace(entry, tenant_id=tenant_id))
            return True

    def record(self, swept: Mapping[str | None, Mapping[str, int]]) -> None:
        entries = []
        for tenant_id, counts in swept.items():
            subject = f"tenant:{tenant_id}" if tenant_id else "server"
            entries.append(AuditEntry("cleaned-up", subject, tenant_id, detail=counts))
        with self._db.transaction() as db:
            db.run_many(ADD_ENTRY, [entry.values(db.clock.utc_now()) for entry in entries])

    def _found(self, query: Select[str, str, int | None, int | None]) -> list[TenantKeeping]:
        with self._db.reading() as db:
            rows = db.execute(query).all()
        self._db.release()  # the caller goes on for long
        return [
            TenantKeeping(id, name, Keeping(self.chats, chats), Keeping(self.audit, audit))
            for id, name, chats, audit in rows
        ]
