"""Whether the database answers at all. One that hangs takes every question and says nothing: whoever asks it
would wait for as long as it hangs, and so would everybody who needs the same thread or connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agentapp.errors import StorageUnavailable

SUSPICIOUS_SECONDS = 2.0  # without any answer to anybody in this process
TRY_SECONDS = 0.5  # from one try to the next, while it hangs

HANGS = "The database does not answer right now. Nothing was lost."


class HangWatch:
    """Those who wait for an answer tell it so, and a thread tries by itself. If the database does not answer
    that either, it `hangs`: then whoever waits gives up, and whoever comes is refused at once, until a try
    succeeds. There is one try at a time, however many wait, and none while all is well.

    A statement that takes long is not a database that hangs: the try tells the two apart.
    """

    def __init__(self, can_answer: Callable[[], bool]) -> None:
        self._can_answer = can_answer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._answered_at = time.monotonic()
        self.hangs = False

    def require_answers(self) -> None:
        """Raises `StorageUnavailable` while it hangs."""
        if self.hangs:
            raise StorageUnavailable(HANGS)

    def answered(self) -> None:
        self._answered_at = time.monotonic()

    def waits(self, seconds: float) -> None:
        """Somebody has had no answer for so many seconds."""
        silent = min(seconds, time.monotonic() - self._answered_at)
        if silent < SUSPICIOUS_SECONDS:
            return
        with self._lock:
            if not self._closing.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._try_until_answered, name="agentapp-database-watch", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread that tries. It may be used again."""
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._closing.clear()

    def _try_until_answered(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            if self._can_answer():
                self.answered()
                self.hangs = False
                return
            self.hangs = self._answered_at < began  # nobody else had an answer either
            self._closing.wait(TRY_SECONDS)
