"""The driver for asyncio: the same loop, for people who embed the agents in an async server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

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
from agentapp.agents.provider import AsyncProvider, Reply, ToolCall, ToolResult, Usage
from agentapp.agents.tool import Tool, ToolContext
from agentapp.errors import ProviderGarbled, TurnFailed
from agentapp.isolation import Binder

Job = asyncio.Future[object] | None


class AsyncDriver:
    """Runs a turn in the caller's task. ``None`` among the events means: nothing new, still waiting."""

    def __init__(self, provider: AsyncProvider, binder: Binder, deadlines: Deadlines | None = None) -> None:
        self._provider, self._binder = provider, binder
        self._deadlines = deadlines or Deadlines()

    async def run(self, loop: TurnLoop, context: ToolContext) -> AsyncGenerator[Event | None]:
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
                            async with aclosing(self._ask(action, turn_ends)) as items:
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
                        async for _ in self._waiting(jobs, turn_ends):
                            yield None
                        action = actions.send(self._results(action, jobs))
        except StopIteration:
            return
        finally:
            actions.close()

    async def _ask(self, action: AskModel, turn_ends: float) -> AsyncGenerator[Event | Reply | None]:
        """The call's events, then its reply."""
        watch = Watch(self._deadlines)
        call = replace(action.call, timeout=max(self._deadlines.first_token, self._deadlines.gap))
        pieces = self._provider.stream(call)
        lead, said, told, spent = action.lead, 0, time.monotonic(), Usage()
        pull = asyncio.ensure_future(_next(pieces))
        try:
            while True:
                began = time.monotonic()
                patience = watch.patience(turn_ends - began)
                done, _ = await asyncio.wait({pull}, timeout=patience)
                item: str | Usage | Reply = pull.result() if done else ""
                if isinstance(item, Usage):
                    spent, item = item, ""
                    watch.waited(time.monotonic() - began)
                elif done:
                    watch.heard()
                else:
                    watch.waited(patience)
                if isinstance(item, Reply):
                    yield item
                    return
                if done:
                    pull = asyncio.ensure_future(_next(pieces))
                if item:
                    said += len(item)
                    yield text_event(lead + item)
                    lead, told = "", time.monotonic()
                elif time.monotonic() - told >= self._deadlines.tick:
                    yield None
                    told = time.monotonic()
        except TurnFailed as error:
            note_ending(error, spent, said)
            raise
        finally:
            await _give_up(pull, pieces)

    def _start_tools(self, action: RunTools, context: ToolContext) -> list[Job]:
        return [self._start_tool(action.agent.tool(call.name), context, call) for call in action.calls]

    async def _waiting(self, jobs: list[Job], turn_ends: float) -> AsyncGenerator[None]:
        """Until the tools are done or their time is up, with a sign of life now and then."""
        ends = min(time.monotonic() + self._deadlines.tool, turn_ends)
        running = {job for job in jobs if job is not None}
        while running and (left := ends - time.monotonic()) > 0:
            _, running = await asyncio.wait(running, timeout=min(left, self._deadlines.tick))
            if running:
                yield None

    def _results(self, action: RunTools, jobs: list[Job]) -> tuple[ToolResult, ...]:
        return tuple(self._result(call, job) for call, job in zip(action.calls, jobs, strict=True))

    def _start_tool(self, tool: Tool | None, context: ToolContext, call: ToolCall) -> Job:
        if tool is None:
            return None
        if inspect.iscoroutinefunction(tool.fn):

            async def run_async() -> object:
                result: object = await tool.call(context, call)
                return result

            return asyncio.ensure_future(self._binder.carried(context.scope, run_async)())
        run = self._binder.carried(context.scope, lambda: tool.call(context, call))
        return asyncio.wrap_future(in_own_thread(run, f"agentapp-tool-{tool.name}"))

    def _result(self, call: ToolCall, job: Job) -> ToolResult:
        if job is None:
            return unknown_result(call)
        if job.done():
            return ended_result(call, job)
        job.cancel()
        return late_result(call, self._deadlines.tool)


async def _next(pieces: AsyncIterator[str | Usage | Reply]) -> str | Usage | Reply:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        raise ProviderGarbled("The model's answer ended too early.") from None


async def _give_up(
    pull: asyncio.Future[str | Usage | Reply], pieces: AsyncIterator[str | Usage | Reply]
) -> None:
    """End the call wherever it is: a connection with half an answer in it must not be used again."""
    pull.cancel()
    await asyncio.wait({pull})
    if not pull.cancelled():
        pull.exception()
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
