"""Every metric once: its name, what it says, and all values that its labels can have.

The values are a closed list, so that the number of series never depends on what people do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from agentapp.telemetry.alerts import SEVERITIES

PREFIX = "agentapp_"
OTHER = "other"  # for a value that is in no list

STATUSES = ("completed", "failed", "stopped", "interrupted")
CELL_SCOPES = ("session", "user", "tenant", "provider")
REFUSALS = ("breaker-open", "rate-limited", "budget-exhausted", "busy", "storage-full")
REFUSAL_SCOPES = (*CELL_SCOPES, "server", "streams", "pages", "new-chats", "login")
LIVE = ("scopes", "agents", "turns", "streams", "db_connections")
VIOLATIONS = (
    "left-bound",
    "foreign-scope",
    "foreign-history",
    "foreign-tool-result",
    "foreign-event",
    "instance-reused",
    "connection-left",
    "agent-left",
    "subscription-left",
)

# Seconds. Each list begins a little below the fastest that was seen and ends above the longest allowed.
SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 5.0)
TRANSACTION = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ANSWER = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """``mode`` is how the gauges of several workers become one. What is ``by_minute`` is also kept in the
    database, for the pages of all workers and hosts.
    """

    kind: Literal["counter", "histogram", "gauge"]
    name: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    buckets: tuple[float, ...] = ()
    mode: Literal["livesum", "livemax", "mostrecent"] = "livesum"
    by_minute: bool = False

    @property
    def minute_name(self) -> str:
        return self.name.removesuffix("_total").removesuffix("_seconds")


def _counter(name: str, text: str, *, by_minute: bool = False, **labels: tuple[str, ...]) -> Metric:
    return Metric("counter", name, text, MappingProxyType(labels), by_minute=by_minute)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *, by_minute: bool = False) -> Metric:
    return Metric("histogram", name, text, buckets=buckets, by_minute=by_minute)


METRICS = (
    _counter("isolation_checks_total", "Checks of isolation that were made.", by_minute=True),
    _counter("isolation_requests_total", "Requests that were checked.", by_minute=True),
    _counter("isolation_violating_total", "Requests in which a check failed.", by_minute=True),
    _counter("isolation_violations_total", "Checks that failed.", by_minute=True, kind=VIOLATIONS),
    _counter("failures_total", "Turns that failed.", by_minute=True),
    _counter(
        "failures_contained_total",
        "Failed turns that made nobody else's turn be refused.",
        by_minute=True,
    ),
    _counter("turns_total", "Turns that have ended.", by_minute=True, status=STATUSES),
    _counter("breaker_trips_total", "Breakers that opened.", scope=CELL_SCOPES),
    _counter(
        "refusals_total",
        "What guardrails refused.",
        by_minute=True,
        code=REFUSALS,
        scope=REFUSAL_SCOPES,
    ),
    _counter("tokens_total", "Tokens used.", kind=("input", "output", "cache_read", "cache_write")),
    _counter("cost_usd_total", "Dollars charged."),
    _counter(
        "alerts_total",
        "Alerts that were raised.",
        kind=tuple(SEVERITIES),
        severity=("critical", "error", "warning"),
    ),
    _histogram("agent_creation_seconds", "To make the agents of a turn.", SHORT, by_minute=True),
    _histogram(
        "agent_reset_seconds", "To have the agents forget a turn that has ended.", SHORT, by_minute=True
    ),
    _histogram("admission_seconds", "To begin a turn: checks, limits, storing the message.", TRANSACTION),
    _histogram("settle_seconds", "To store how a turn has ended.", TRANSACTION),
    _histogram("writer_wait_seconds", "Waiting for a write transaction to begin.", TRANSACTION),
    _histogram("first_token_seconds", "From the message to the first word of its answer.", ANSWER),
    _histogram("turn_seconds", "From the message to the end of its answer.", ANSWER),
    Metric(
        "gauge",
        "live",
        "How many there are now.",
        MappingProxyType({"kind": LIVE}),
    ),
    Metric(
        "gauge",
        "heartbeat_lag_seconds",
        "How late the last beat of a worker's slowest background thread has ended.",
        MappingProxyType({"thread": ("heartbeat", "heartbeat-leases")}),
        mode="livemax",
    ),
    Metric(
        "gauge",
        "host_clock_ahead_seconds",
        "By how much the clock of this host is ahead of the database's.",
        mode="mostrecent",
    ),
)
# Only where there is a Redis. It is what the worker knows that was asked.
REDIS_UP = Metric("gauge", "redis_up", "Whether Redis is there: 1 or 0.")
# What is not counted in a process. It is read from the database when Prometheus asks, so it is the same on
# every host.
READ_FROM_DATABASE = (
    Metric(
        "gauge", "isolation_score", "Share of the checked requests of the last hour in which isolation held."
    ),
    Metric(
        "gauge", "breakers_open", "Breakers that are not closed.", MappingProxyType({"scope": CELL_SCOPES})
    ),
    Metric(
        "gauge",
        "alerts_open",
        "Alerts that nobody has acknowledged.",
        MappingProxyType({"kind": tuple(SEVERITIES)}),
    ),
)
