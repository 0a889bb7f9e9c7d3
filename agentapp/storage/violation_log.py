"""Violations of isolation in the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from agentapp.storage.audit_log import AuditEntry, AuditLog
from agentapp.telemetry.violations import FoundViolation

VIOLATED = "isolation-violated"


class ViolationLog:
    """A `telemetry.jobs.ViolationStore`. The subject of a row is the kind of violation."""

    def __init__(self, audit_log: AuditLog) -> None:
        self._audit_log = audit_log

    def add(self, found: Sequence[FoundViolation]) -> None:
        self._audit_log.add(
            *(
                AuditEntry(VIOLATED, each.kind, each.tenant_id or None, request_id=each.request_id or "-")
                for each in found
            )
        )
