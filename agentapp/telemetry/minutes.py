"""What happened in each minute, as far as this process has counted it and not stored it yet."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

MAX_PENDING = 20_000  # beyond that, what belongs to tenants is counted for nobody


class MinuteKey(NamedTuple):
    name: str
    tenant_id: str
    minute: int
    label: str


class MinuteCounts:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[MinuteKey] = Counter()

    def add(self, name: str, amount: int, tenant_id: str = "", label: str = "") -> None:
        key = MinuteKey(name, tenant_id, int(self._clock() // 60), label)
        with self._lock:
            if len(self._counts) >= MAX_PENDING and key not in self._counts:
                key = key._replace(tenant_id="")
            self._counts[key] += amount

    def take(self) -> Mapping[MinuteKey, int]:
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def put_back(self, taken: Mapping[MinuteKey, int]) -> None:
        """They could not be stored."""
        with self._lock:
            self._counts.update(taken)
