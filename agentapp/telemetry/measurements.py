"""The `Telemetry` of a server: metrics for Prometheus, counts by the minute, violations and alerts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from agentapp.telemetry.alerts import SEVERITIES, Alert
from agentapp.telemetry.catalogue import METRICS, VIOLATIONS
from agentapp.telemetry.metrics import UNSTORED, Metrics
from agentapp.telemetry.minutes import MinuteCounts, MinuteKey
from agentapp.telemetry.violations import Violations

SLOW_RESET_SECONDS = 5.0
REMEMBERED_REQUESTS = 10_000


class Measurements(Violations):
    """Lives as long as the process."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics, self.minutes = Metrics(), MinuteCounts()
        self._by_minute = {metric.name: metric for metric in METRICS if metric.by_minute}
        self._violating: OrderedDict[str, None] = OrderedDict()  # requests that were counted already

    def count(self, name: str, amount: float = 1, /, *, tenant_id: str = "", **labels: str) -> None:
        self.metrics.count(name, amount, labels)
        if (metric := self._by_minute.get(name)) is not None:
            self.minutes.add(metric.minute_name, int(amount), tenant_id, "/".join(labels.values()))

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        self.metrics.observe(name, value, labels)
        if (metric := self._by_minute.get(name)) is not None:
            self.minutes.add(metric.minute_name, 1, label=metric.bucket_of(value))
        if name == "agent_reset_seconds" and value > SLOW_RESET_SECONDS:
            self.alert("reset-slow", f"the agents of a turn took {value:.1f} s to forget it")

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        self.metrics.gauge(name, value, labels)

    def check(self, amount: int = 1, /) -> None:
        self.count("isolation_checks_total", amount)

    def request_checked(self) -> None:
        self.count("isolation_requests_total")
        self.metrics.count(UNSTORED.name, 1, {"count": "requests"})

    def violation(self, kind: str, detail: str, /, request_id: str = "") -> None:
        super().violation(kind, detail, request_id)
        self.count("isolation_violations_total", kind=kind if kind in VIOLATIONS else "other")
        if self._is_first_of(request_id):
            self.count("isolation_violating_total")
            self.metrics.count(UNSTORED.name, 1, {"count": "violating"})
        self.alert("isolation-score", "The isolation score is below 1: a check of isolation has failed.")

    def _raised(self, alert: Alert) -> None:
        super()._raised(alert)
        self.count("alerts_total", kind=alert.kind, severity=SEVERITIES[alert.kind])

    def stored(self, counts: Mapping[MinuteKey, int]) -> None:
        """These are in the database now."""
        for count in ("requests", "violating"):
            amount = sum(n for key, n in counts.items() if key.name == f"isolation_{count}")
            if amount:
                self.metrics.count(UNSTORED.name, -amount, {"count": count})

    def _is_first_of(self, request_id: str) -> bool:
        """A request that violates isolation twice counts as one. Without an id it counts each time."""
        with self._lock:
            if request_id and request_id in self._violating:
                return False
            self._violating[request_id] = None
            if len(self._violating) > REMEMBERED_REQUESTS:
                self._violating.popitem(last=False)
        return True


def isolation_score(requests: float, violating: float) -> float | None:
    """1 if no request violated isolation; None if none was checked: that is unknown, and not good."""
    return max(0.0, 1 - violating / requests) if requests > 0 else None
