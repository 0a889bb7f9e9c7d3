"""The driver for asyncio: the same loop, for people who embed the agents in an async server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace

from agentapp.agents.actions import AskModel, Emit, Loop, RunTools
from agentapp.agents.drivers.shared import (
    AsyncHalt,
    Deadlines,
    Halt,
    Progress,
    SilenceTimer,
    count_item,
)
from agentapp.agents.provider import AsyncProvider, ModelCall, Reply, ToolCall, ToolResult
from agentapp.agents.results import Returned, finished_result, late_result, unknown_tool_result
from agentapp.agents.threads import run_in_own_thread
from agentapp.agents.tool import Tool, ToolContext
from agentapp.errors import ProviderGarbled, TurnFailed
from agentapp.events import Event, Usage
from agentapp.isolation import Binder, Scope

Job = asyncio.Future[Returned] | None  # None for a tool that does not exist


class AsyncDriver:
    """Runs a turn in the caller's task. ``None`` among the events means: nothing new, still waiting."""

    def __init__(self, provider: AsyncProvider, binder: Binder, deadlines: Deadlines | None = None) -> None:
        self._provider, self._binder = provider, binder
        self._deadlines = deadlines or Deadlines()

    async def run(
        self, loop: Loop, context: ToolContext, halt: Halt | None = None
    ) -> AsyncGenerator[Event | None]:
        """``halt`` ends the turn when any thread or task sets an exception on it, which is raised here.

        It takes effect before the next action and wakes every wait. The cost of a model call that it ends is
        in ``loop.spent``. An async tool that is still running is cancelled; one on a thread goes on, and its
        result is dropped.
        """
        halted = AsyncHalt(Future() if halt is None else halt)
        turn_ends = time.monotonic() + self._deadlines.turn
        actions = loop.run()
        try:
            action = next(actions)
            while True:
                halted.raise_if_halted()
                match action:
                    case Emit(event):
                        yield event
                        action = actions.send(None)
                    case AskModel():
                        try:
                            async with aclosing(self._ask(action, turn_ends, halted)) as items:
                                async for item in items:
                                    if isinstance(item, Reply):
                                        reply = item
                                    else:
                                        yield item
                        except TurnFailed as error:
                            action = actions.throw(error)
                        else:
                            action = actions.send(reply)
                    case RunTools():
                        jobs = self._start_tools(action, context)
                        try:
                            async for _ in self._wait_for(jobs, turn_ends, halted):
                                yield None
                            results = self._results(action, context.scope, jobs)
                        finally:
                            _drop(jobs)
                        action = actions.send(results)
        except StopIteration:
            return
        finally:
            actions.close()

    async def _ask(
        self, action: AskModel, turn_ends: float, halted: AsyncHalt
    ) -> AsyncGenerator[Event | Reply | None]:
        """The call's events, then its reply."""
        timer = SilenceTimer(self._deadlines)
        progress = Progress(action.separator, self._deadlines.tick)
        call = replace(action.call, timeout=self._deadlines.longest_silence)
        reader = AsyncStreamReader(self._provider, call)
        try:
            while True:
                item = await reader.next_item(timer, turn_ends, halted)
                halted.raise_if_halted()
                if isinstance(item, Reply):
                    yield item
                    return
                if isinstance(item, BaseException):
                    raise item
                for event in progress.events_for(item):
                    yield event
        except TurnFailed as error:
            progress.complete(error, call.meter.usage)
            raise
        finally:
            await reader.close()

    def _start_tools(self, action: RunTools, context: ToolContext) -> list[Job]:
        return [self._start_tool(action.agent.find_tool(call.name), context, call) for call in action.calls]

    def _start_tool(self, tool: Tool | None, context: ToolContext, call: ToolCall) -> Job:
        if tool is None:
            return None
        if inspect.iscoroutinefunction(tool.fn):

            async def run_async() -> Returned:
                return Returned(self._binder.current(), await tool.call(context, call))

            return asyncio.ensure_future(self._binder.carried(context.scope, run_async)())
        current = self._binder.current
        run = self._binder.carried(context.scope, lambda: Returned(current(), tool.call(context, call)))
        return asyncio.wrap_future(run_in_own_thread(run, f"agentapp-tool-{tool.name}", anywhere=True))

    async def _wait_for(self, jobs: list[Job], turn_ends: float, halted: AsyncHalt) -> AsyncGenerator[None]:
        """Until the tools are done or their time is up. Yields now and then while some are running."""
        ends = min(time.monotonic() + self._deadlines.tool, turn_ends)
        running = {job for job in jobs if job is not None}
        while running and (left := ends - time.monotonic()) > 0:
            await halted.wait(running, min(left, self._deadlines.tick))
            halted.raise_if_halted()
            running = {job for job in running if not job.done()}
            if running:
                yield None

    def _results(self, action: RunTools, scope: Scope, jobs: list[Job]) -> tuple[ToolResult, ...]:
        return tuple(self._result(scope, call, job) for call, job in zip(action.calls, jobs, strict=True))

    def _result(self, scope: Scope, call: ToolCall, job: Job) -> ToolResult:
        if job is None:
            return unknown_tool_result(call)
        if job.done():
            return finished_result(scope, call, job)
        return late_result(scope, call, self._deadlines.tool)


def _drop(jobs: list[Job]) -> None:
    """Cancel what still runs. Exceptions of the rest are read, because asyncio logs those that never are."""
    for job in jobs:
        if job is not None and not job.cancel() and not job.cancelled():
            job.exception()


class AsyncStreamReader:
    """One model call. What comes of it is counted by its meter."""

    def __init__(self, provider: AsyncProvider, call: ModelCall) -> None:
        self._pieces = provider.stream(call)
        self._pull = asyncio.ensure_future(self._next())
        self._meter = call.meter

    async def next_item(
        self, timer: SilenceTimer, turn_ends: float, halt: AsyncHalt
    ) -> str | Reply | BaseException:
        """The next piece, the reply, or what the provider raised; an empty piece if there was none for a
        while. Raises when a deadline has passed.
        """
        began = time.monotonic()
        seconds = timer.next_wait(turn_ends - began)
        await halt.wait({self._pull}, seconds)
        if not self._pull.done():
            timer.add(seconds)
            return ""
        error = self._pull.exception()
        item = self._pull.result() if error is None else error
        count_item(self._meter, item)
        if not isinstance(item, (Reply, BaseException)):
            self._pull = asyncio.ensure_future(self._next())
        if isinstance(item, Usage):
            timer.add(time.monotonic() - began)
            return ""
        timer.restart()
        return item

    async def close(self) -> None:
        """End the call wherever it is: a connection with half an answer in it must not be used again."""
        self._pull.cancel()
        await asyncio.wait({self._pull})
        if not self._pull.cancelled():
            self._pull.exception()
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()

    async def _next(self) -> str | Usage | Reply:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            raise ProviderGarbled("The model's answer ended too early.") from None
