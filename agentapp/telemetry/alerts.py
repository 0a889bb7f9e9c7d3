"""Alerts: what an operator has to look at, how bad it is, and those that are not stored yet."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
                alert = replace(alert, count=alert.count + before.count)
            elif len(self._alerts) >= MAX_PENDING:
                return
            self._alerts[key] = alert

    def take(self) -> tuple[Alert, ...]:
        with self._lock:
            taken, self._alerts = tuple(self._alerts.values()), {}
        return taken
