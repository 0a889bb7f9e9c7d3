"""Alerts: what a person has to look at, how bad it is, and those that are not stored yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Literal

Severity = Literal["critical", "error", "warning"]

SEVERITIES: Mapping[str, Severity] = MappingProxyType(
    {
        "cross-request-leak": "critical",
        "instance-reused": "error",
        "reset-slow": "warning",
        "isolation-score": "error",
        "provider-breaker-open": "error",
        "provider-setup": "error",
        "budget-90": "warning",
        "unsettled-reservations": "warning",
        "heartbeat-late": "warning",
        "clock-wrong": "warning",
    }
)
MAX_PENDING = 1000  # kinds and subjects; all else is counted when it comes again


@dataclass(frozen=True, slots=True)
class Alert:
    """``count`` is how often it was raised since it was stored last."""

    kind: str
    detail: str
    subject: str = ""
    tenant_id: str | None = None
    request_id: str = ""
    count: int = 1

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.kind]

    def after(self, before: Alert) -> Alert:
        """The two as one. If not both are of one tenant, it is for operators alone."""
        same = self.tenant_id == before.tenant_id
        return replace(self, count=self.count + before.count, tenant_id=self.tenant_id if same else None)


@dataclass(frozen=True, slots=True)
class StoredAlert:
    """One as it is in the database. ``acknowledged_by`` is the id of a user."""

    id: str
    kind: str
    severity: Severity
    tenant_id: str | None
    subject: str
    detail: str
    request_id: str
    count: int
    first_at: datetime
    last_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    delivered_at: datetime | None
    delivery_attempts: int
    delivery_since: datetime | None
    delivery_problem: str
    next_delivery_at: datetime | None


class PendingAlerts:
    """Alerts that this process has raised and that are not stored yet. The heartbeat takes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alerts: dict[tuple[str, str], Alert] = {}

    def add(self, alert: Alert) -> None:
        key = (alert.kind, alert.subject)
        with self._lock:
            before = self._alerts.pop(key, None)
            if before is not None:
                alert = alert.after(before)
            elif len(self._alerts) >= MAX_PENDING:
                return
            self._alerts[key] = alert

    def put_back(self, taken: Iterable[Alert]) -> None:
        """They could not be stored."""
        with self._lock:
            for alert in taken:
                key = (alert.kind, alert.subject)
                newer = self._alerts.get(key)
                if newer is not None:
                    self._alerts[key] = newer.after(alert)
                elif len(self._alerts) < MAX_PENDING:
                    self._alerts[key] = alert

    def take(self) -> tuple[Alert, ...]:
        with self._lock:
            taken, self._alerts = tuple(self._alerts.values()), {}
        return taken
