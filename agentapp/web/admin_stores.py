"""What the admin pages read and change, beside the parts that chats use too."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.guardrails.limit_admin import LimitAdmin
from agentapp.guardrails.operator import BreakerAdmin
from agentapp.storage.alerts import AlertStore
from agentapp.storage.audit_log import AuditLog
from agentapp.storage.audit_rows import AuditRows
from agentapp.storage.chat_removal import ChatRemoval
from agentapp.storage.count_series import CountSeries
from agentapp.storage.live_objects import LiveObjects
from agentapp.storage.retention import RetentionStore
from agentapp.storage.running_turns import RunningTurns
from agentapp.storage.usage_reports import UsageReports
from agentapp.storage.user_admin import UserAdmin
from agentapp.storage.violations import ViolationLog
from agentapp.storage.workers import WorkerStore


@dataclass(frozen=True, slots=True)
class AdminStores:
    audit_log: AuditLog
    audit_rows: AuditRows
    limits: LimitAdmin
    breakers: BreakerAdmin
    counts: CountSeries
    violations: ViolationLog
    live_objects: LiveObjects
    alerts: AlertStore
    retention: RetentionStore
    old_chats: ChatRemoval
    users: UserAdmin
    running_turns: RunningTurns
    workers: WorkerStore
    usage: UsageReports
