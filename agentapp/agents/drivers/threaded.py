"""The driver for threads: carries a loop's actions out and yields its events as they happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from agentapp.agents.drivers.shared import (
    Deadlines,
    Watch,
    ended_result,
    in_own_thread,
    late_result,
    note_ending,
    text_event,
    unknown_result,
)
from agentapp.agents.loop import AskModel, Emit, Event, RunTools, TurnLoop
from agentapp.agents.provider import Line, ModelCall, Provider, Reply, ToolCall, ToolResult, Usage
from agentapp.agents.tool import Tool, ToolContext
from agentapp.errors import ProviderGarbled, TurnFailed, TurnInterrupted
from agentapp.isolation import Binder

Events = Generator["Event | None", None, None]


class ThreadedDriver:
    """Runs a turn on the caller's thread. ``None`` among the events means: nothing new, still waiting.

    The model is listened to on a thread of its own, so that silence can be noticed and ended.
    """

    def __init__(self, provider: Provider, binder: Binder, deadlines: Deadlines | None = None) -> None:
        self._provider, self._binder = provider, binder
        self._deadlines = deadlines or Deadlines()

    def run(self, loop: TurnLoop, context: ToolContext, halt: Future[Any] | None = None) -> Events:
        """``halt`` ends the turn when somebody on any thread sets an exception on it, which is raised here.

        It takes effect before anything more is done and wakes every wait. What the model call that it
        ends had cost is in ``loop.spent``; a tool that it leaves behind goes on, and nobody hears of it.
        """
        halt = Future() if halt is None else halt
        turn_ends = time.monotonic() + self._deadlines.turn
        actions = loop.run()
        try:
            action = next(actions)
            while True:
                _check(halt)
                match action:
                    case Emit(event):
                        yield event
                        action = actions.send(None)
                    case AskModel():
                        try:
                            reply = yield from self._ask(action, context, turn_ends, halt)
                        except TurnFailed as error:
                            action = actions.throw(error)
                        else:
                            action = actions.send(reply)
                    case RunTools():
                        results = yield from self._run_tools(action, context, turn_ends, halt)
                        action = actions.send(results)
        except StopIteration:
            return
        finally:
            actions.close()

    def _ask(
        self, action: AskModel, context: ToolContext, turn_ends: float, halt: Future[Any]
    ) -> Generator[Event | None, None, Reply]:
        watch = Watch(self._deadlines)
        timeout = max(self._deadlines.first_token, self._deadlines.gap)
        listening = _Listening(self._provider, replace(action.call, timeout=timeout, line=Line()))
        heard = listening.heard
        halt.add_done_callback(lambda _: heard.put(""))  # it wakes whoever waits, and `halt` tells the rest
        in_own_thread(self._binder.carried(context.scope, listening.run), "agentapp-model")
        lead, said, told = action.lead, 0, time.monotonic()
        try:
            while True:
                began = time.monotonic()
                patience = watch.patience(turn_ends - began)
                try:
                    item = heard.get(timeout=patience)
                except Empty:
                    watch.waited(patience)
                    item = ""
                else:
                    if isinstance(item, Usage):
                        item = ""
                        watch.waited(time.monotonic() - began)
                    else:
                        watch.heard()
                _check(halt)
                if isinstance(item, Reply):
                    return item
                if isinstance(item, Exception):
                    raise item
                if item:
                    said += len(item)
                    yield text_event(lead + item)
                    lead, told = "", time.monotonic()
                elif time.monotonic() - told >= self._deadlines.tick:
                    yield None
                    told = time.monotonic()
        except TurnFailed as error:
            note_ending(error, listening.spent, said)
            raise
        finally:
            listening.hang_up()

    def _run_tools(
        self, action: RunTools, context: ToolContext, turn_ends: float, halt: Future[Any]
    ) -> Generator[Event | None, None, tuple[ToolResult, ...]]:
        jobs = [self._start_tool(action.agent.tool(call.name), context, call) for call in action.calls]
        ends = min(time.monotonic() + self._deadlines.tool, turn_ends)
        running = [job for job in jobs if job is not None]
        while running and (left := ends - time.monotonic()) > 0:
            wait((*running, halt), timeout=min(left, self._deadlines.tick), return_when=FIRST_COMPLETED)
            _check(halt)
            running = [job for job in running if not job.done()]
            if running:
                yield None
        return tuple(self._result(call, job) for call, job in zip(action.calls, jobs, strict=True))

    def _start_tool(self, tool: Tool | None, context: ToolContext, call: ToolCall) -> Future[object] | None:
        if tool is None:
            return None
        run = self._binder.carried(context.scope, lambda: _finish(tool.call(context, call)))
        return in_own_thread(run, f"agentapp-tool-{tool.name}")

    def _result(self, call: ToolCall, job: Future[object] | None) -> ToolResult:
        if job is None:
            return unknown_result(call)
        return ended_result(call, job) if job.done() else late_result(call, self._deadlines.tool)


class _Listening:
    """One model call, read on a thread of its own into a queue."""

    def __init__(self, provider: Provider, call: ModelCall) -> None:
        self._provider, self._call = provider, call
        self.heard: SimpleQueue[str | Usage | Reply | Exception] = SimpleQueue()
        self.spent = Usage()

    def run(self) -> None:
        try:
            pieces = self._provider.stream(self._call)
            try:
                for piece in pieces:
                    self._hear(piece)
                    if self._call.line.is_hung_up:
                        return
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
            self.heard.put(ProviderGarbled("The model's answer ended too early."))
        except Exception as error:
            self._hear(error)
        except BaseException as error:  # whoever listens must not be ended by an exit meant for this thread
            self.heard.put(ProviderGarbled(f"The model's answer ended with {type(error).__name__}."))

    def hang_up(self) -> None:
        """A late answer is discarded and its connection closed, never pooled."""
        self._call.line.hang_up()

    def _hear(self, piece: str | Usage | Reply | Exception) -> None:
        match piece:
            case Usage():
                self.spent = piece
            case Reply(usage=Usage() as usage) | TurnFailed(usage=Usage() as usage):
                self.spent = usage
        self.heard.put(piece)


def _check(halt: Future[Any]) -> None:
    if halt.done():
        raise halt.exception() or TurnInterrupted()


def _finish(value: object) -> object:
    """An async tool runs to its end on the tool's own thread."""
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    return value


async def _awaited(value: Awaitable[object]) -> object:
    return await value
