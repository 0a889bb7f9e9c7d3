"""What both drivers share: deadlines, halting from outside, the progress of a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agentapp.agents.meter import Meter
from agentapp.agents.provider import Reply
from agentapp.errors import (
    ProviderError,
    ProviderTimeout,
    TurnFailed,
    TurnInterrupted,
    TurnTimeout,
)
from agentapp.events import Text, Usage


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: for the whole turn, for the first token of a model call, between any two tokens, for a tool.

    ``tick`` is how often a driver yields ``None`` while it waits.
    """

    turn: float = 120.0
    first_token: float = 30.0
    gap: float = 15.0
    tool: float = 5.0
    tick: float = 5.0

    @property
    def longest_silence(self) -> float:
        return max(self.first_token, self.gap)


@dataclass(slots=True)
class SilenceTimer:
    """How long one model call has been silent. Only the time spent waiting for the model counts, so that a
    reader who takes the pieces slowly does not make the model look silent.
    """

    deadlines: Deadlines
    silence: float = 0.0
    has_begun: bool = False

    @property
    def allowed(self) -> float:
        return self.deadlines.gap if self.has_begun else self.deadlines.first_token

    @property
    def seconds_left(self) -> float:
        return self.allowed - self.silence

    def next_wait(self, turn_left: float) -> float:
        """Seconds to wait for the next piece before calling this again. Raises when a deadline has passed."""
        if self.seconds_left <= 0:
            what = "stopped answering" if self.has_begun else "did not begin to answer"
            raise ProviderTimeout(f"The model {what} within {self.allowed:g} seconds.")
        if turn_left <= 0:
            raise TurnTimeout(f"The answer took longer than {self.deadlines.turn:g} seconds.")
        return min(self.seconds_left, turn_left, self.deadlines.tick)

    def add(self, seconds: float) -> None:
        self.silence += seconds

    def restart(self) -> None:
        """The model has sent something."""
        self.silence, self.has_begun = 0.0, True


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


@dataclass(slots=True)
class Progress:
    """The progress of one model call. ``separator`` goes before its first piece of text."""

    separator: str
    tick: float
    has_shown: bool = False
    _last_event: float = field(default_factory=time.monotonic)

    def events_for(self, piece: str) -> Iterator[Text | None]:
        """The event of a piece. Without text it is ``None``, and only if there was no event for a tick."""
        if piece:
            self.has_shown = True
            text, self.separator = self.separator + piece, ""
            yield Text(text)
            self._last_event = time.monotonic()
        elif time.monotonic() - self._last_event >= self.tick:
            yield None
            self._last_event = time.monotonic()

    def complete(self, error: TurnFailed, spent: Usage) -> None:
        """Add to the error that ended the call what it does not know: the cost, and if any text was shown."""
        if error.usage is None:
            error.usage = spent
        if isinstance(error, ProviderError):
            error.said_something = self.has_shown


def count_item(meter: Meter, item: object) -> None:
    """Count what a provider gave or raised. It may say what the call has cost so far."""
    match item:
        case str():
            meter.heard(item)
        case Usage():
            meter.says(item)
        case Reply(usage=Usage() as usage) | TurnFailed(usage=Usage() as usage):
            meter.says(usage)


def nothing() -> None:
    """To be called where nobody has to do anything before a wait."""
