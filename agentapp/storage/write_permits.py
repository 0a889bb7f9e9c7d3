"""Who may write next: so many at once, the others wait; who is urgent goes before them."""

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
        """Raises `StorageUnavailable` if there is none for so many seconds."""
        if not (self._take_urgently(seconds) if urgent else self._take(seconds)):
            raise StorageUnavailable("The database is busy. Try again in a moment.")
        try:
            yield
        finally:
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
