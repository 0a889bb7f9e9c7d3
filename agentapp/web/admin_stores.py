"""What the admin pages read and change, beside the parts that chats use too."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.guardrails.limit_admin import LimitAdmin
from agentapp.storage.audit_log import AuditLog
from agentapp.storage.audit_rows import AuditRows


@dataclass(frozen=True, slots=True)
class AdminStores:
    audit_log: AuditLog
    audit_rows: AuditRows
    limits: LimitAdmin
