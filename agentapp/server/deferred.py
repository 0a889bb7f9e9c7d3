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
        self.is_woken = False

    def defer(self, callback: Callable[..., object], *args: Any) -> None:
        self._queue.put(partial(callback, *args))
        if not self.is_woken:
            self.is_woken = True
            with suppress(OSError):
                os.write(self._write_fd, b"\0")

    def run_callbacks(self, _: Any = None) -> None:
        with suppress(OSError):
            os.read(self._read_fd, 4096)
        # Before the queue is emptied: who adds something after that must wake the loop again.
        self.is_woken = False
        with suppress(Empty):
            while True:
                self._queue.get_nowait()()
