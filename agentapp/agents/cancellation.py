"""Ending a model call from another thread than the one that reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancellation:
    """Belongs to one model call. Any thread may cancel it, once and for good.

    A provider that can end its call early says how with ``on_cancel``, again whenever the way changes, and
    calls ``clear`` once there is nothing left to end. The answer of one that cannot is read no further.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._action: Callable[[], object] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def on_cancel(self, action: Callable[[], object]) -> None:
        """Have ``action`` called by ``cancel``, instead of any earlier one.

        If the call is cancelled already, it is called at once, on the current thread.
        """
        with self._lock:
            if not self.is_cancelled:
                self._action = action
                return
        action()

    def clear(self) -> None:
        """Have nothing called by ``cancel``."""
        with self._lock:
            self._action = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            action, self._action = self._action, None
        if action is not None:
            action()

    def wait(self, seconds: float) -> None:
        """Sleep that long, or until the call is cancelled."""
        self._cancelled.wait(seconds)
