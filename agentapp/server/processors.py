"""Which processor the threads of a worker run on."""

from __future__ import annotations

import os
from contextlib import suppress


def processor_of(row: int, workers: int) -> int | None:
    """The processor for the worker in that row, or None if its threads may run on any.

    Only one thread of a process runs Python at a time. On two processors they still get in each other's way:
    whenever one of them calls the system or the database, another takes the interpreter's lock, and the first
    has to wait for it, perhaps with the database's lock in hand. On one processor a short call is over before
    any other thread could take it.

    They stay on one only if every processor gets as many workers as the others: then none is left unused.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not usable or workers % len(usable):
        return None
    return usable[row % len(usable)]


def stay_on(processor: int) -> None:
    """For the thread that calls it, and the threads that it starts."""
    with suppress(OSError):  # it was taken away from this machine; any other will do
        os.sched_setaffinity(0, {processor})
