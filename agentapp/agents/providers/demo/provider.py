"""The demo model as a provider: streams the answers that its rules give."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from agentapp.agents.meter import estimated_tokens
from agentapp.agents.provider import ModelCall, Reply, ToolCall, estimated_input
from agentapp.agents.providers.demo.rules import decide
from agentapp.agents.providers.demo.turn import Decision, read_turn
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage

MAX_TOOL_CALLS = 8
FAIL_AFTER_PIECES = 6


class DemoProvider:
    """Streams what `answer` returns word by word, with ``delay`` seconds in between."""

    def __init__(self, delay: float = 0.02, sleep: Callable[[float], object] | None = None) -> None:
        self._delay, self._sleep = delay, sleep
        self.reads_in_place = sleep is None

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        sleep = self._sleep or call.sleep
        for step in _steps(call, self._delay):
            if not isinstance(step, _Wait):
                yield step
                continue
            sleep(step.seconds)
            if call.cancellation.is_cancelled:
                raise ProviderGarbled("The call was given up.")


class AsyncDemoProvider:
    """The same for asyncio."""

    def __init__(
        self, delay: float = 0.02, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._delay, self._sleep = delay, sleep

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Reply]:
        for step in _steps(call, self._delay):
            if isinstance(step, _Wait):
                await self._sleep(step.seconds)
            else:
                yield step


@dataclass(frozen=True, slots=True)
class _Wait:
    seconds: float


def _steps(call: ModelCall, delay: float) -> Iterator[_Wait | str | Reply]:
    call.meter.sent()
    decision = decide(read_turn(call))
    reply = _reply(call, decision)
    left = decision.wait
    while left > 0:
        yield _Wait(min(1.0, left))
        yield ""
        left -= 1.0
    pieces = re.findall(r"\S+\s*|\s+", reply.text)
    for number, piece in enumerate(pieces):
        if number == FAIL_AFTER_PIECES and decision.fails_midway:
            spent = Usage(reply.usage.input_tokens, estimated_tokens(pieces[:number]), 1)
            raise ProviderGarbled("The demo model was told to fail after some words.", usage=spent)
        if number and delay > 0:
            yield _Wait(delay)
        yield piece
    yield reply


def answer(call: ModelCall) -> Reply:
    """The demo model's reply: equal calls get equal replies. Raises only for ``/fail``."""
    return _reply(call, decide(read_turn(call)))


def _reply(call: ModelCall, decision: Decision) -> Reply:
    text = decision.text[: 4 * call.max_tokens]
    digest = _digest(call)
    calls = tuple(
        ToolCall(f"demo_{digest}_{number}", name, value)
        for number, (name, value) in enumerate(decision.calls[:MAX_TOOL_CALLS], 1)
    )
    output = estimated_tokens((text, *(f"{made.name}{made.input}" for made in calls)))
    stop = "tool_use" if calls else "max_tokens" if len(text) < len(decision.text) else "end_turn"
    return Reply(text, calls, Usage(estimated_input(call.system, call.messages, call.tools), output, 1), stop)


def _digest(call: ModelCall) -> str:
    return hashlib.sha256(repr((call.system, call.messages)).encode("utf-8", "replace")).hexdigest()[:16]
