"""Seats: how many of this worker's threads may be busy with turns. The others are for everything else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from agentapp.errors import Busy
from agentapp.guardrails.wording import explained

PATIENCE = 2.0


class Seats:
    """In this process's memory, and rightly so: it is this process's threads that are shared out."""

    def __init__(self, threads: int, reserved: int) -> None:
        self.resize(threads, reserved)

    def resize(self, threads: int, reserved: int) -> None:
        """Before anybody sits: as many as there are threads beyond the reserve, and at least one."""
        self.total = max(1, threads - reserved)
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self.total):
            self._free.put(None)

    def taken(self) -> int:
        return self.total - self._free.qsize()

    def take(self) -> None:
        """Raises `Busy` if none is free: waiting for one would take the very thread that is missing."""
        try:
            self._free.get_nowait()
        except Empty:
            refusal = Busy(limit=self.total, used=self.total, retry_after=PATIENCE)
            refusal.scope = "server"
            refusal.args = (explained(refusal),)
            raise refusal from None

    def leave(self) -> None:
        self._free.put(None)

    def leave_with(self, holder: object) -> Callable[[], object]:
        """Call it to leave. Once only; and if nobody does, the seat is free when the holder is gone."""
        # A SimpleQueue may be put to from a finaliser, at whatever moment the garbage collector comes.
        leaving = weakref.finalize(holder, self.leave)
        leaving.atexit = False
        return leaving
