"""What both drivers share: the deadlines they keep, and how a tool's end becomes a result."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from agentapp.agents.loop import Event
from agentapp.agents.provider import ToolCall, ToolResult, Usage
from agentapp.agents.tool import bad_result, failed_result, good_result
from agentapp.errors import (
    ProviderError,
    ProviderTimeout,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
    TurnTimeout,
)

log = logging.getLogger(__name__)

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. ``tick`` is how often a driver lets its caller know that it is only waiting."""

    turn: float = 120.0
    first_token: float = 30.0
    gap: float = 15.0
    tool: float = 5.0
    tick: float = 5.0


@dataclass(slots=True)
class Watch:
    """How long one model call may go on being silent. Only the time spent waiting for it counts.

    A reader who takes the pieces slowly is not the model's silence.
    """

    deadlines: Deadlines
    silent: float = 0.0
    heard_any: bool = False

    def patience(self, turn_left: float) -> float:
        """How long to wait for the next piece before looking again. Raises when it has been too long."""
        allowed = self.deadlines.gap if self.heard_any else self.deadlines.first_token
        if self.silent >= allowed:
            what = "stopped answering" if self.heard_any else "did not begin to answer"
            raise ProviderTimeout(f"The model {what} within {allowed:g} seconds.")
        if turn_left <= 0:
            raise TurnTimeout(f"The answer took longer than {self.deadlines.turn:g} seconds.")
        return min(allowed - self.silent, turn_left, self.deadlines.tick)

    def waited(self, seconds: float) -> None:
        self.silent += seconds

    def heard(self) -> None:
        self.silent, self.heard_any = 0.0, True


def note_ending(error: TurnFailed, spent: Usage, said: int) -> None:
    """What the call had cost when it was given up, if the error does not know, and whether it was heard.

    ``said`` is how many characters of the answer were heard.
    """
    if error.usage is None:
        error.usage = _at_least(spent, said) if isinstance(error, (TurnStopped, TurnInterrupted)) else spent
    if isinstance(error, ProviderError):
        error.said_something = said > 0


def _at_least(spent: Usage, said: int) -> Usage:
    # A provider may tell its output only at the end, which a halted call never reaches. To stop an answer
    # just before its end would be a way to have it for nothing, so what was heard is counted roughly.
    return replace(spent, output_tokens=max(spent.output_tokens, math.ceil(said / CHARS_PER_TOKEN)))


def text_event(text: str) -> Event:
    return Event("text", {"text": text})


def in_own_thread(run: Callable[[], object], name: str) -> Future[object]:
    """Run a job on a thread made for it. A pool is shared state: one session's hung tools could fill it."""
    job: Future[object] = Future()
    job.set_running_or_notify_cancel()

    def fulfil() -> None:
        try:
            job.set_result(run())
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=fulfil, name=name, daemon=True).start()
    return job


def ended_result(call: ToolCall, job: Future[object] | asyncio.Future[object]) -> ToolResult:
    """The result of a tool that returned or raised."""
    error = asyncio.CancelledError() if job.cancelled() else job.exception()
    if error is None:
        return good_result(call, job.result())
    log.warning("tool %s raised %s", call.name, type(error).__name__, exc_info=error)
    return failed_result(call, error)


def late_result(call: ToolCall, seconds: float) -> ToolResult:
    log.warning("tool %s did not end within %g s and was given up", call.name, seconds)
    return bad_result(call, f"it did not end within {seconds:g} seconds")


def unknown_result(call: ToolCall) -> ToolResult:
    return bad_result(call, "there is no such tool")
