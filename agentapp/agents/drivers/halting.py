"""Halting a turn from outside, which both drivers allow in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from agentapp.errors import TurnInterrupted

# Setting an exception on it, from any thread, halts the turn: the driver raises that exception.
Halt = Future[Any]


def raise_if_halted(halt: Halt) -> None:
    if halt.done():
        raise halt.exception() or TurnInterrupted()


class AsyncHalt:
    """A `Halt` that the running event loop can wait for."""

    def __init__(self, halt: Halt) -> None:
        self._halt = halt
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        halt.add_done_callback(self._wake)

    def raise_if_halted(self) -> None:
        raise_if_halted(self._halt)

    async def wait(self, jobs: Iterable[asyncio.Future[Any]], seconds: float) -> None:
        """Until one of the jobs is done or the turn is halted, but not longer than that."""
        await asyncio.wait({*jobs, self._woken}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _wake(self, _: Halt) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits any more
            self._loop.call_soon_threadsafe(self._woken.set_result, None)
