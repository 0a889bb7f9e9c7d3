"""The `Telemetry` of a server: metrics for Prometheus, counts by the minute, violations and alerts."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from math import inf

from agentapp.telemetry.alerts import SEVERITIES, Alert
from agentapp.telemetry.catalogue import METRICS, VIOLATIONS, Metric
from agentapp.telemetry.metrics import UNSTORED, Metrics
from agentapp.telemetry.minutes import ADDED_UP_AT, MinuteCounts
from agentapp.telemetry.violations import Violations

SLOW_RESET_SECONDS = 5.0
REMEMBERED_REQUESTS = 10_000
# What must not be lost if the worker is killed. All else happens many times in each turn and can wait.
AT_ONCE = frozenset(
    {
        "turns_total",
        "failures_total",
        "failures_contained_total",
        "isolation_violations_total",
        "isolation_violating_total",
        "breaker_trips_total",
        "refusals_total",
        "alerts_total",
    }
)


class Measurements(Violations):  # agentapp: shared ok - what is noted is appended, which is atomic
    """Lives as long as the process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.metrics, self.minutes = Metrics(self.add_up), MinuteCounts(clock)
        self._noted: deque[tuple[str, float, str, tuple[tuple[str, str], ...]]] = deque()
        self._adding_up = threading.Lock()
        self._counted = {m.name: m.minute_name for m in METRICS if m.by_minute and m.kind == "counter"}
        self._observed = {m.name: _ByBucket(m) for m in METRICS if m.by_minute and m.kind == "histogram"}
        self._violating: OrderedDict[str, None] = OrderedDict()  # requests that were counted already

    def count(self, name: str, amount: float = 1, /, *, tenant_id: str = "", **labels: str) -> None:
        if name in AT_ONCE:
            self._count(name, amount, tenant_id, labels)
        else:
            self._note(name, amount, tenant_id, labels)

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        self._note(name, value, "", labels)

    def _note(self, name: str, value: float, tenant_id: str, labels: Mapping[str, str]) -> None:
        self._noted.append((name, value, tenant_id, tuple(labels.items()) if labels else ()))
        if len(self._noted) >= ADDED_UP_AT:
            self.add_up()

    def add_up(self) -> None:
        """What was noted in turns, where it must be cheap. The heartbeat does this every second; of a worker
        that is killed, that second is lost.
        """
        with self._adding_up:
            counts: Counter[tuple[str, str, tuple[tuple[str, str], ...]]] = Counter()
            for _ in range(len(self._noted)):  # others go on meanwhile
                name, value, tenant_id, labels = self._noted.popleft()
                if name.endswith("_total"):
                    counts[name, tenant_id, labels] += value  # type: ignore[assignment]
                else:
                    self._observe(name, value, dict(labels))
            for (name, tenant_id, labels), amount in counts.items():
                self._count(name, amount, tenant_id, dict(labels))

    def _count(self, name: str, amount: float, tenant_id: str, labels: Mapping[str, str]) -> None:
        self.metrics.count(name, amount, labels)
        if (by_minute := self._counted.get(name)) is not None:
            self.minutes.add(by_minute, int(amount), tenant_id, "/".join(labels.values()) if labels else "")

    def _observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self.metrics.observe(name, value, labels)
        if (by_minute := self._observed.get(name)) is not None:
            self.minutes.add(by_minute.name, 1, "", by_minute.bucket_of(value))
        if value > SLOW_RESET_SECONDS and name == "agent_reset_seconds":
            self.alert("reset-slow", f"the agents of a turn took {value:.1f} s to forget it")

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        self.metrics.gauge(name, value, labels)

    def check(self, amount: int = 1, /, *, tenant_id: str = "") -> None:
        self.count("isolation_checks_total", amount, tenant_id=tenant_id)

    def request_checked(self, *, tenant_id: str = "") -> None:
        self.count("isolation_requests_total", tenant_id=tenant_id)

    def violation(self, kind: str, detail: str, /, request_id: str = "", *, tenant_id: str = "") -> None:
        super().violation(kind, detail, request_id, tenant_id=tenant_id)
        kind = kind if kind in VIOLATIONS else "other"
        self.count("isolation_violations_total", tenant_id=tenant_id, kind=kind)
        if self._is_first_of(request_id):
            self.count("isolation_violating_total", tenant_id=tenant_id)
            self.metrics.count(UNSTORED.name, 1, {})
        self.alert("isolation-score", "The isolation score is below 1: a check of isolation has failed.")

    def _raised(self, alert: Alert) -> None:
        super()._raised(alert)
        self.count("alerts_total", kind=alert.kind, severity=SEVERITIES[alert.kind])

    def unstored(self, tenant_id: str | None = None) -> tuple[float, float]:
        """Requests that were checked in this worker and are not in the database yet, and those in which
        isolation was violated: of one tenant in this worker, or of all in all workers.
        """
        self.add_up()
        requests = self.minutes.total("isolation_requests", tenant_id)
        if tenant_id is None:
            return requests, self.metrics.unstored()
        return requests, self.minutes.total("isolation_violating", tenant_id)

    def stored(self) -> None:
        """The counts that were taken are in the database now."""
        violating = self.minutes.stored().get("isolation_violating", 0)
        if violating:
            self.metrics.count(UNSTORED.name, -violating, {})

    def _is_first_of(self, request_id: str) -> bool:
        """A request that violates isolation twice counts as one. Without an id it counts each time."""
        with self._lock:
            if request_id and request_id in self._violating:
                return False
            self._violating[request_id] = None
            if len(self._violating) > REMEMBERED_REQUESTS:
                self._violating.popitem(last=False)
        return True


class _ByBucket:
    """The upper ends of a histogram's buckets, as they are written in `minute_counts`."""

    def __init__(self, metric: Metric) -> None:
        self.name, self._bounds = metric.minute_name, metric.buckets
        self._labels = tuple(f"{bound:g}" for bound in (*metric.buckets, inf))

    def bucket_of(self, value: float) -> str:
        return self._labels[bisect_left(self._bounds, value)]


def isolation_score(requests: float, violating: float) -> float | None:
    """1 if no request violated isolation; None if none was checked: that is unknown, and not good."""
    requests = max(requests, violating)
    return 1 - violating / requests if requests > 0 else None
