"""Who may write next: so many at once, the others wait; who is urgent goes before them. And of one tenant
never all of them, so that one that waits for a row of its own does not keep the others from writing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentapp.errors import StorageUnavailable


class WritePermits:
    """Whoever comes when a permit is free takes it, also before those who were told that it is and are not
    awake yet: with many threads at work it takes long to wake up, and the database would wait meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._free, self._urgent = most, 0
        self._lock = threading.Lock()
        self._changed, self._changed_for_urgent = (threading.Condition(self._lock) for _ in range(2))

    @contextmanager
    def held(self, seconds: float, *, urgent: bool = False) -> Iterator[None]:
        self.take(seconds, urgent=urgent)
        try:
            yield
        finally:
            self.give_back()

    def take(self, seconds: float, *, urgent: bool = False) -> None:
        """Raises `StorageUnavailable` if there is none for so many seconds."""
        if not (self._take_urgently(seconds) if urgent else self._take(seconds)):
            raise StorageUnavailable("The database is busy. Try again in a moment.")

    def give_back(self) -> None:
        with self._lock:
            self._free += 1
            self._tell_next()

    def _take(self, seconds: float) -> bool:
        with self._lock:
            if not self._changed.wait_for(lambda: self._free and not self._urgent, seconds):
                return False
            self._free -= 1
            return True

    def _take_urgently(self, seconds: float) -> bool:
        with self._lock:
            self._urgent += 1
            found = self._changed_for_urgent.wait_for(lambda: self._free, seconds)
            self._urgent -= 1
            if found:
                self._free -= 1
            self._tell_next()
            return bool(found)

    def _tell_next(self) -> None:
        if self._free:
            (self._changed_for_urgent if self._urgent else self._changed).notify()


class Shares:
    """Of each key at most so many at once. The others of that key wait, and nobody else does."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._shares: dict[str, _Share] = {}  # of the keys that somebody has or waits for

    @contextmanager
    def held(self, key: str, seconds: float) -> Iterator[None]:
        """Raises `StorageUnavailable` if there is none for so many seconds."""
        with self._lock:
            share = self._shares.setdefault(key, _Share(self._most))
            share.users += 1
        try:
            if not share.free.acquire(timeout=seconds):
                raise StorageUnavailable("The database is busy. Try again in a moment.")
            try:
                yield
            finally:
                share.free.release()
        finally:
            with self._lock:
                share.users -= 1
                if not share.users:
                    del self._shares[key]

    def __len__(self) -> int:
        return len(self._shares)


class _Share:
    def __init__(self, most: int) -> None:
        self.free, self.users = threading.Semaphore(most), 0
