"""Which processors threads run on: those of a worker mostly stay on one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processors:
    """The one that a worker ``stays_on``, of those that are ``usable``.

    Only one thread of a process runs Python at a time. On two processors they still get in each other's way:
    whenever one of them calls the system or the database, another takes the interpreter's lock, and the first
    has to wait for it, perhaps with the database's lock in hand. On one processor a short call is over before
    any other thread could take it.
    """

    stays_on: int
    usable: frozenset[int]

    def use_one(self) -> None:
        """For the calling thread, and for those that it starts."""
        _use({self.stays_on})

    def use_all(self) -> None:
        _use(self.usable)


def processors_of(row: int, workers: int) -> Processors | None:
    """For the worker in that row. None if its threads are to run anywhere: only if every processor gets as
    many workers as the others, none is left unused.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not usable or workers % len(usable):
        return None
    return Processors(usable[row % len(usable)], frozenset(usable))


def new_thread(
    work: Callable[[], object], name: str, processors: Processors | None = None, *, anywhere: bool = False
) -> threading.Thread:
    """A thread, not started yet, that stays on the worker's processor or may run ``anywhere``, also if it is
    started by one that stays. Without ``processors`` it is as the thread that calls this.
    """
    return _WorkerThread(work, name, processors or _processors_of_caller(), anywhere)


class _WorkerThread(threading.Thread):
    def __init__(
        self, work: Callable[[], object], name: str, processors: Processors | None, anywhere: bool
    ) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.processors, self._anywhere = processors, anywhere

    def run(self) -> None:
        if self.processors is not None and self._anywhere:
            self.processors.use_all()
        elif self.processors is not None:
            self.processors.use_one()
        super().run()


def _processors_of_caller() -> Processors | None:
    caller = threading.current_thread()
    return caller.processors if isinstance(caller, _WorkerThread) else None


def _use(processors: set[int] | frozenset[int]) -> None:
    with suppress(OSError):  # they were taken away from this machine; any other will do
        os.sched_setaffinity(0, processors)
