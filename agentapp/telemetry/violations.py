"""Violations of isolation: counted by kind, and logged."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from agentapp.telemetry.protocol import NullTelemetry

log = logging.getLogger(__name__)


class Violations(NullTelemetry):
    """A `Telemetry` that keeps the alerts and nothing else. In a sound app all counts stay at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def alert(self, kind: str, detail: str, /) -> None:
        with self._lock:
            self._counts[kind] += 1
        log.error("isolation violation (%s): %s", kind, detail)
