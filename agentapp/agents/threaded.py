"""The driver for threads: carries a loop's actions out and yields its events as they happen."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Generator, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from queue import Empty, SimpleQueue

from agentapp.agents.driving import (
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
from agentapp.agents.provider import ModelCall, Provider, Reply, ToolCall, ToolResult, Usage
from agentapp.agents.tools import Tool, ToolContext
from agentapp.errors import ProviderGarbled, TurnFailed
from agentapp.isolation import Binder

Events = Generator["Event | None", None, None]


class ThreadedDriver:
    """Runs a turn on the caller's thread. ``None`` among the events means: nothing new, still waiting.

    The model is listened to on a thread of its own, so that silence can be noticed and ended.
    """

    def __init__(self, provider: Provider, binder: Binder, deadlines: Deadlines | None = None) -> None:
        self._provider, self._binder = provider, binder
        self._deadlines = deadlines or Deadlines()

    def run(self, loop: TurnLoop, context: ToolContext) -> Events:
        turn_ends = time.monotonic() + self._deadlines.turn
        actions = loop.run()
        try:
            action = next(actions)
            while True:
                match action:
                    case Emit(event):
                        yield event
                        action = actions.send(None)
                    case AskModel():
                        try:
                            reply = yield from self._ask(action, context, turn_ends)
                        except TurnFailed as error:
                            action = actions.throw(error)
                        else:
                            action = actions.send(reply)
                    case RunTools():
                        results = yield from self._run_tools(action, context, turn_ends)
                        action = actions.send(results)
        except StopIteration:
            return
        finally:
            actions.close()

    def _ask(
        self, action: AskModel, context: ToolContext, turn_ends: float
    ) -> Generator[Event | None, None, Reply]:
        watch = Watch(self._deadlines)
        call = replace(action.call, timeout=max(self._deadlines.first_token, self._deadlines.gap))
        listening = _Listening(self._provider, call)
        in_own_thread(self._binder.carried(context.scope, listening.run), "agentapp-model")
        lead, said, told, spent = action.lead, False, time.monotonic(), Usage()
        try:
            while True:
                began = time.monotonic()
                patience = watch.patience(turn_ends - began)
                try:
                    item = listening.heard.get(timeout=patience)
                except Empty:
                    watch.waited(patience)
                    item = ""
                else:
                    if isinstance(item, Usage):
                        spent, item = item, ""
                        watch.waited(time.monotonic() - began)
                    else:
                        watch.heard()
                if isinstance(item, Reply):
                    return item
                if isinstance(item, Exception):
                    raise item
                if item:
                    yield text_event(lead + item)
                    lead, said, told = "", True, time.monotonic()
                elif time.monotonic() - told >= self._deadlines.tick:
                    yield None
                    told = time.monotonic()
        except TurnFailed as error:
            note_ending(error, spent, said)
            raise
        finally:
            listening.given_up.set()

    def _run_tools(
        self, action: RunTools, context: ToolContext, turn_ends: float
    ) -> Generator[Event | None, None, tuple[ToolResult, ...]]:
        jobs = [self._start_tool(action.agent.tool(call.name), context, call) for call in action.calls]
        ends = min(time.monotonic() + self._deadlines.tool, turn_ends)
        running: Iterable[Future[object]] = [job for job in jobs if job is not None]
        while running and (left := ends - time.monotonic()) > 0:
            running = wait(running, timeout=min(left, self._deadlines.tick)).not_done
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
        self.given_up = threading.Event()

    def run(self) -> None:
        try:
            pieces = self._provider.stream(self._call)
            try:
                for piece in pieces:
                    self.heard.put(piece)
                    if self.given_up.is_set():
                        return
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
            self.heard.put(ProviderGarbled("The model's answer ended too early."))
        except Exception as error:
            self.heard.put(error)
        except BaseException as error:  # whoever listens must not be ended by an exit meant for this thread
            self.heard.put(ProviderGarbled(f"The model's answer ended with {type(error).__name__}."))


def _finish(value: object) -> object:
    """An async tool runs to its end on the tool's own thread."""
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    return value


async def _awaited(value: Awaitable[object]) -> object:
    return await value
