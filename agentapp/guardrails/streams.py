"""Seats: how many of this worker's threads may be busy with streams. The others are for everything else."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from contextlib import suppress
from queue import Empty, SimpleQueue

from agentapp.errors import Busy
from agentapp.guardrails.wording import explained

PATIENCE = 2.0
SHARE = 2  # nobody gets more than one part in so many
FEW = 32  # but everybody may have this many


class Seats:
    """In this process's memory, and rightly so: it is this process's threads that are shared out."""

    def __init__(self, threads: int, reserved: int) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        # A seat may be left by the garbage collector, at any moment, also while this thread has the lock.
        self._left: SimpleQueue[str] = SimpleQueue()
        self.resize(threads, reserved)

    def resize(self, threads: int, reserved: int) -> None:
        """As many as there are threads beyond the reserve, and at least one."""
        self.total = max(1, threads - reserved)

    def taken(self) -> int:
        with self._lock:
            return self._count().total()

    def take(self, user_id: str) -> Seat:
        """Raises `Busy` if none is free: waiting for one would take the very thread that is missing."""
        most = max(FEW, self.total // SHARE)
        with self._lock:
            taken = self._count()
            if taken.total() >= self.total:
                raise _busy("server", self.total)
            if taken[user_id] >= most:
                raise _busy("streams", most)
            taken[user_id] += 1
        return Seat(self._left, user_id)

    def _count(self) -> Counter[str]:
        with suppress(Empty):
            while True:
                user_id = self._left.get_nowait()
                self._taken[user_id] -= 1
                if not self._taken[user_id]:
                    del self._taken[user_id]
        return self._taken


class Seat:
    """Leave it, once or more often; and if nobody does, it is free when the holder is gone."""

    def __init__(self, left: SimpleQueue[str], user_id: str) -> None:
        self._leaving = weakref.finalize(self, left.put, user_id)
        self._leaving.atexit = False

    def leave(self) -> None:
        self._leaving()


def _busy(scope: str, most: int) -> Busy:
    refusal = Busy(limit=most, used=most, retry_after=PATIENCE)
    refusal.scope = scope
    refusal.args = (explained(refusal),)
    return refusal
