"""Violations of isolation: counted by kind, logged, and alerts."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from agentapp.telemetry.alerts import SEVERITIES, Alert, PendingAlerts
from agentapp.telemetry.protocol import NullTelemetry

REUSED = "instance-reused"
MAX_PENDING = 1000  # beyond that, the oldest are only counted

log = logging.getLogger(__name__)


class FoundViolation(NamedTuple):
    kind: str
    request_id: str
    tenant_id: str


class Violations(NullTelemetry):
    """A `Telemetry` that keeps violations and alerts. In a sound app all counts stay at zero."""

    def __init__(self) -> None:
        self.pending_alerts = PendingAlerts()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._found: deque[FoundViolation] = deque(maxlen=MAX_PENDING)  # not in the audit log yet

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def take_found(self) -> Sequence[FoundViolation]:
        """Those that are not in the audit log yet."""
        with self._lock:
            taken, self._found = self._found, deque(maxlen=MAX_PENDING)
        return tuple(taken)

    def put_back_found(self, found: Sequence[FoundViolation]) -> None:
        """They could not be stored."""
        with self._lock:
            self._found = deque((*found, *self._found), maxlen=MAX_PENDING)

    def violation(self, kind: str, detail: str, /, request_id: str = "", *, tenant_id: str = "") -> None:
        with self._lock:
            self._counts[kind] += 1
            self._found.append(FoundViolation(kind, request_id, tenant_id))
        log.error("isolation violation (%s): %s", kind, detail, extra={"request_id": request_id or None})
        alert = REUSED if kind == REUSED else "cross-request-leak"
        self._raised(Alert(alert, f"{kind}: {detail}", subject=kind, request_id=request_id))

    def alert(self, kind: str, detail: str, /, *, subject: str = "", tenant_id: str | None = None) -> None:
        log.log(
            logging.getLevelNamesMapping()[SEVERITIES[kind].upper()],
            "alert (%s) %s: %s",
            kind,
            subject,
            detail,
        )
        self._raised(Alert(kind, detail, subject, tenant_id))

    def _raised(self, alert: Alert) -> None:
        self.pending_alerts.add(alert)
