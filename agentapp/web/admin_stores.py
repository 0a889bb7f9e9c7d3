"""What the admin pages read and change, beside the parts that chats use too."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.guardrails.limit_admin import LimitAdmin
from agentapp.storage.alerts import AlertStore
from agentapp.storage.audit_log import AuditLog


@dataclass(frozen=True, slots=True)
class AdminStores:
    audit_log: AuditLog
    limits: LimitAdmin
    alerts: AlertStore
