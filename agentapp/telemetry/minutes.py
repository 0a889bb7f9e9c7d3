"""What happened in each minute, as far as this process has counted it and not stored it yet."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

MAX_PENDING = 20_000  # beyond that, what belongs to tenants is counted for nobody
ADDED_UP_AT = 5_000  # events


class MinuteKey(NamedTuple):
    name: str
    tenant_id: str
    minute: int
    label: str


class MinuteCounts:  # agentapp: shared ok - to append to the events is atomic, all else is under the lock
    """To note an event is cheap, as each request notes several: they are added up when they are taken."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[tuple[str, str, int, str, int]] = deque()
        self._lock = threading.Lock()
        self._counts: Counter[MinuteKey] = Counter()
        self._being_stored: Mapping[MinuteKey, int] = {}

    def add(self, name: str, amount: int, tenant_id: str = "", label: str = "") -> None:
        self._events.append((name, tenant_id, int(self._clock()) // 60, label, amount))
        if len(self._events) >= ADDED_UP_AT:
            with self._lock:
                self._add_up()

    def total(self, name: str, tenant_id: str | None = None) -> int:
        """What is not known to be stored yet, of one tenant or of all and of none."""
        with self._lock:
            self._add_up()
            return sum(
                amount
                for counts in (self._counts, self._being_stored)
                for key, amount in counts.items()
                if key.name == name and tenant_id in (None, key.tenant_id)
            )

    def take(self) -> Mapping[MinuteKey, int]:
        """To be stored. Then call either `stored` or `put_back`, before the next `take`."""
        with self._lock:
            self._add_up()
            self._being_stored, self._counts = self._counts, Counter()
            return self._being_stored

    def stored(self) -> Mapping[str, int]:
        """How much of each name is stored now."""
        with self._lock:
            taken, self._being_stored = self._being_stored, {}
        amounts: Counter[str] = Counter()
        for key, amount in taken.items():
            amounts[key.name] += amount
        return amounts

    def put_back(self) -> None:
        """They could not be stored."""
        with self._lock:
            taken, self._being_stored = self._being_stored, {}
            self._counts.update(taken)

    def _add_up(self) -> None:
        """Others go on adding meanwhile."""
        events = Counter([self._events.popleft() for _ in range(len(self._events))])
        for (name, tenant_id, minute, label, amount), times in events.items():
            key = MinuteKey(name, tenant_id, minute, label)
            if len(self._counts) >= MAX_PENDING and key not in self._counts:
                key = key._replace(tenant_id="")
            self._counts[key] += amount * times
