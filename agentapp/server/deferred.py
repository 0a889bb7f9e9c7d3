"""What threads leave to the worker's main loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

from gunicorn.workers.gthread import PollableMethodQueue


class Deferred(PollableMethodQueue):  # type: ignore[misc]
    """Wakes the main loop once for all that comes before it looks; gunicorn's own writes and reads a byte for
    each. It has no lock: gunicorn calls it in signal handlers too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_woken = self.has_some = False

    def leave(self, callback: Callable[..., object], *args: Any) -> None:
        """The same without waking the main loop: for what is soon enough when it looks the next time."""
        self._queue.put(partial(callback, *args))
        self.has_some = True

    def defer(self, callback: Callable[..., object], *args: Any) -> None:
        self._queue.put(partial(callback, *args))
        self.has_some = True
        if not self.is_woken:
            self.is_woken = True
            with suppress(OSError):
                os.write(self._write_fd, b"\0")

    def run_callbacks(self, readable: Any = None) -> None:
        if readable is not None or self.is_woken:
            with suppress(OSError):
                os.read(self._read_fd, 4096)
        # Before the queue is emptied: who adds something after that must wake the loop again.
        self.is_woken = self.has_some = False
        with suppress(Empty):
            while True:
                self._queue.get_nowait()()
