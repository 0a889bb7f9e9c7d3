"""The driver for asyncio: the same loop, for people who embed the agents in an async server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from agentapp.agents.driving import (
    Deadlines,
    Watch,
    ended_result,
    in_own_thread,
    late_result,
    text_event,
    unknown_result,
)
from agentapp.agents.loop import AskModel, Emit, Event, RunTools, TurnLoop
from agentapp.agents.provider import AsyncProvider, Reply, ToolCall, ToolResult
from agentapp.agents.tools import Tool, ToolContext
from agentapp.errors import ProviderError, ProviderGarbled
from agentapp.isolation import Binder


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
                            async for item in self._ask(action, turn_ends):
                                if isinstance(item, Reply):
                                    reply = item
                                else:
                                    yield item
                        except ProviderError as error:
                            action = actions.throw(error)
                        else:
                            action = actions.send(reply)
                    case RunTools():
                        action = actions.send(await self._run_tools(action, context))
        except StopIteration:
            return
        finally:
            actions.close()

    async def _ask(self, action: AskModel, turn_ends: float) -> AsyncGenerator[Event | Reply | None]:
        """The call's events, then its reply."""
        watch = Watch(self._deadlines, turn_ends, time.monotonic())
        call = replace(action.call, timeout=max(self._deadlines.first_token, self._deadlines.gap))
        pieces = self._provider.stream(call)
        lead, said = action.lead, False
        pull = asyncio.ensure_future(_next(pieces))
        try:
            while True:
                done, _ = await asyncio.wait({pull}, timeout=watch.patience(time.monotonic()))
                if not done:
                    yield None
                    continue
                item = pull.result()
                if isinstance(item, Reply):
                    yield item
                    return
                watch.heard(time.monotonic())
                pull = asyncio.ensure_future(_next(pieces))
                if item:
                    yield text_event(lead + item)
                    lead, said = "", True
        except ProviderError as error:
            error.said_something = said
            raise
        finally:
            await _give_up(pull, pieces)

    async def _run_tools(self, action: RunTools, context: ToolContext) -> tuple[ToolResult, ...]:
        jobs = {
            call.id: self._start_tool(action.agent.tool(call.name), context, call) for call in action.calls
        }
        running = [job for job in jobs.values() if job is not None]
        if running:
            await asyncio.wait(running, timeout=self._deadlines.tool)
        return tuple(self._result(call, jobs[call.id]) for call in action.calls)

    def _start_tool(
        self, tool: Tool | None, context: ToolContext, call: ToolCall
    ) -> asyncio.Future[object] | None:
        if tool is None:
            return None
        if inspect.iscoroutinefunction(tool.fn):

            async def run_async() -> object:
                result: object = await tool.call(context, call)
                return result

            return asyncio.ensure_future(self._binder.carried(context.scope, run_async)())
        run = self._binder.carried(context.scope, lambda: tool.call(context, call))
        return asyncio.wrap_future(in_own_thread(run, f"agentapp-tool-{tool.name}"))

    def _result(self, call: ToolCall, job: asyncio.Future[object] | None) -> ToolResult:
        if job is None:
            return unknown_result(call)
        if job.done():
            return ended_result(call, job)
        job.cancel()
        return late_result(call, self._deadlines.tool)


async def _next(pieces: AsyncIterator[str | Reply]) -> str | Reply:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        raise ProviderGarbled("The model's answer ended too early.") from None


async def _give_up(pull: asyncio.Future[str | Reply], pieces: AsyncIterator[str | Reply]) -> None:
    """End the call wherever it is: a connection with half an answer in it must not be used again."""
    pull.cancel()
    await asyncio.wait({pull})
    if not pull.cancelled():
        pull.exception()
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
