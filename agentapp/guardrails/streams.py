"""Stream slots: how many threads of a worker may be busy with streams. The others serve everything else."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from contextlib import suppress
from queue import Empty, SimpleQueue

from agentapp.errors import Busy
from agentapp.guardrails.wording import stamp_refusal

RETRY_AFTER_SECONDS = 2.0
# One user may have this many streams at once, or one part in USER_SHARE of all slots if that is more.
STREAMS_PER_USER = 32
USER_SHARE = 2


class StreamSlots:
    """Counted in memory, because what is shared out is the threads of this process."""

    def __init__(self, threads: int, reserved: int) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        # A slot may be released by the garbage collector, at any moment, even while this thread has the lock.
        self._released: SimpleQueue[str] = SimpleQueue()
        self.resize(threads, reserved)

    def resize(self, threads: int, reserved: int) -> None:
        """As many slots as there are threads beyond the reserved ones, and at least one."""
        self.total = max(1, threads - reserved)

    def taken(self) -> int:
        with self._lock:
            return self._count().total()

    def take(self, user_id: str) -> StreamSlot:
        """Raises `Busy` if none is free: waiting for one would occupy the very thread that is missing."""
        most = max(STREAMS_PER_USER, self.total // USER_SHARE)
        with self._lock:
            taken = self._count()
            if taken.total() >= self.total:
                raise _busy("server", self.total)
            if taken[user_id] >= most:
                raise _busy("streams", most)
            taken[user_id] += 1
        return StreamSlot(self._released, user_id)

    def _count(self) -> Counter[str]:
        with suppress(Empty):
            while True:
                user_id = self._released.get_nowait()
                self._taken[user_id] -= 1
                if not self._taken[user_id]:
                    del self._taken[user_id]
        return self._taken


class StreamSlot:
    """Release it once or more often. If nobody does, it is released when this object is gone."""

    def __init__(self, released: SimpleQueue[str], user_id: str) -> None:
        self._release = weakref.finalize(self, released.put, user_id)
        self._release.atexit = False

    def release(self) -> None:
        self._release()


def _busy(scope: str, most: int) -> Busy:
    return stamp_refusal(Busy(limit=most, used=most, retry_after=RETRY_AFTER_SECONDS), scope)
