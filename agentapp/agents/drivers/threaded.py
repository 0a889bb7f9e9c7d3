"""The driver for threads: carries out what the loop decides and yields its events as they happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from queue import Empty, SimpleQueue

from agentapp.agents.actions import AskModel, Emit, Loop, RunTools
from agentapp.agents.drivers.in_place import WaitInPlace
from agentapp.agents.drivers.shared import (
    Deadlines,
    Halt,
    Progress,
    SilenceTimer,
    count_item,
    nothing,
    raise_if_halted,
)
from agentapp.agents.provider import Cancellation, ModelCall, Provider, Reply, ToolCall, ToolResult
from agentapp.agents.results import Returned, finished_result, late_result, unknown_tool_result
from agentapp.agents.threads import run_in_own_thread
from agentapp.agents.tool import Tool, ToolContext
from agentapp.errors import ProviderGarbled, TurnFailed
from agentapp.events import Event, Usage
from agentapp.isolation import Binder, Scope

Job = Future[Returned] | None  # None for a tool that does not exist


class ThreadedDriver:
    """Runs a turn on the caller's thread. ``None`` among the events means: nothing new, still waiting.

    A model that ``reads_in_place`` (see `Provider`) is read on that thread too. Any other is read on a thread
    of its own, so that its silence can be noticed and ended.
    """

    def __init__(self, provider: Provider, binder: Binder, deadlines: Deadlines | None = None) -> None:
        self._provider, self._binder = provider, binder
        self._deadlines = deadlines or Deadlines()

    def run(
        self,
        loop: Loop,
        context: ToolContext,
        halt: Halt | None = None,
        before_wait: Callable[[], object] = nothing,
    ) -> Generator[Event | None, None, None]:
        """``halt`` ends the turn when any thread sets an exception on it, which is raised here.

        It takes effect before the next action and wakes every wait. The cost of a model call that it ends is
        in ``loop.spent``. A tool that is still running goes on, and its result is dropped.

        ``before_wait`` is called on this thread whenever it is about to wait for the model or for tools: that
        is, after all events that came without waiting. While a model that is read in place is silent, nothing
        can be yielded, and this is called about once a second instead.
        """
        halt = Future() if halt is None else halt
        turn_ends = time.monotonic() + self._deadlines.turn
        actions = loop.run()
        try:
            action = next(actions)
            while True:
                raise_if_halted(halt)
                match action:
                    case Emit(event):
                        yield event
                        action = actions.send(None)
                    case AskModel():
                        try:
                            if getattr(self._provider, "reads_in_place", False):
                                reply = yield from self._ask_in_place(action, turn_ends, halt, before_wait)
                            else:
                                reply = yield from self._ask(action, context, turn_ends, halt, before_wait)
                        except TurnFailed as error:
                            action = actions.throw(error)
                        else:
                            action = actions.send(reply)
                    case RunTools():
                        results = yield from self._run_tools(action, context, turn_ends, halt, before_wait)
                        action = actions.send(results)
        except StopIteration:
            return
        finally:
            actions.close()

    def _ask(
        self,
        action: AskModel,
        context: ToolContext,
        turn_ends: float,
        halt: Halt,
        before_wait: Callable[[], object],
    ) -> Generator[Event | None, None, Reply]:
        call = replace(action.call, timeout=self._deadlines.longest_silence, cancellation=Cancellation())
        reader = StreamReader(self._provider, call)
        items = reader.items
        halt.add_done_callback(lambda _: items.put(""))  # ends the wait for the next item
        run_in_own_thread(self._binder.carried(context.scope, reader.run), "agentapp-model")
        timer = SilenceTimer(self._deadlines)
        progress = Progress(action.separator, self._deadlines.tick)
        try:
            while True:
                if items.empty():
                    before_wait()
                item = reader.next_item(timer, turn_ends)
                raise_if_halted(halt)
                if isinstance(item, Reply):
                    return item
                if isinstance(item, Exception):
                    raise item
                yield from progress.events_for(item)
        except TurnFailed as error:
            progress.complete(error, call.meter.usage)
            raise
        finally:
            # A late answer is dropped, and its connection is closed instead of going back to a pool.
            call.cancellation.cancel()

    def _ask_in_place(
        self, action: AskModel, turn_ends: float, halt: Halt, before_wait: Callable[[], object]
    ) -> Generator[Event | None, None, Reply]:
        cancellation = Cancellation()
        waiting = WaitInPlace(self._deadlines, turn_ends, cancellation, before_wait)
        call = replace(
            action.call, timeout=self._deadlines.longest_silence, cancellation=cancellation, waiting=waiting
        )
        halt.add_done_callback(lambda _: cancellation.cancel())
        progress = Progress(action.separator, self._deadlines.tick)
        items = self._read_in_place(call, halt, waiting)
        try:
            for item in items:
                if isinstance(item, Reply):
                    return item
                yield from progress.events_for(item)
            raise ProviderGarbled("The model's answer ended too early.")
        except TurnFailed as error:
            progress.complete(error, call.meter.usage)
            raise
        finally:
            items.close()
            waiting.end()

    def _read_in_place(
        self, call: ModelCall, halt: Halt, waiting: WaitInPlace
    ) -> Generator[str | Reply, None, None]:
        items = self._provider.stream(call)
        try:
            for item in items:
                count_item(call.meter, item)
                raise_if_halted(halt)
                waiting.heard(item)
                if not isinstance(item, Usage):
                    yield item
        except TurnFailed as error:
            count_item(call.meter, error)
            raise_if_halted(halt)  # a call that was cancelled says only that; who cancelled it says why
            if waiting.failure is not None:
                raise waiting.failure from None
            raise
        finally:
            _close(items)

    def _run_tools(
        self,
        action: RunTools,
        context: ToolContext,
        turn_ends: float,
        halt: Halt,
        before_wait: Callable[[], object],
    ) -> Generator[None, None, tuple[ToolResult, ...]]:
        jobs = [self._start_tool(action.agent.find_tool(call.name), context, call) for call in action.calls]
        ends = min(time.monotonic() + self._deadlines.tool, turn_ends)
        running = [job for job in jobs if job is not None]
        while running and (left := ends - time.monotonic()) > 0:
            before_wait()
            wait((*running, halt), timeout=min(left, self._deadlines.tick), return_when=FIRST_COMPLETED)
            raise_if_halted(halt)
            running = [job for job in running if not job.done()]
            if running:
                yield None
        return tuple(
            self._result(context.scope, call, job) for call, job in zip(action.calls, jobs, strict=True)
        )

    def _start_tool(self, tool: Tool | None, context: ToolContext, call: ToolCall) -> Job:
        if tool is None:
            return None
        current = self._binder.current
        run = self._binder.carried(
            context.scope, lambda: Returned(current(), _finish(tool.call(context, call)))
        )
        return run_in_own_thread(run, f"agentapp-tool-{tool.name}", anywhere=True)

    def _result(self, scope: Scope, call: ToolCall, job: Job) -> ToolResult:
        if job is None:
            return unknown_tool_result(call)
        if job.done():
            return finished_result(scope, call, job)
        return late_result(scope, call, self._deadlines.tool)


def _close(items: Iterator[object]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


def _finish(value: object) -> object:
    """An async tool runs to its end on the tool's own thread."""
    if inspect.isawaitable(value):
        return asyncio.run(_await(value))
    return value


async def _await(value: Awaitable[object]) -> object:
    return await value


class StreamReader:
    """One model call. ``run`` is for the thread that reads, ``next_item`` for the thread that waits.

    What was read is counted by the call's meter at once, which may be before ``next_item`` comes to it.
    """

    def __init__(self, provider: Provider, call: ModelCall) -> None:
        self._provider, self._call = provider, call
        self.items: SimpleQueue[str | Usage | Reply | Exception] = SimpleQueue()

    def run(self) -> None:
        try:
            pieces = self._provider.stream(self._call)
            try:
                for piece in pieces:
                    self._put(piece)
                    if self._call.cancellation.is_cancelled:
                        return
            finally:
                _close(pieces)
            self._put(ProviderGarbled("The model's answer ended too early."))
        except Exception as error:
            self._put(error)
        except BaseException as error:  # an exit meant for this thread must not end the thread that waits
            self._put(ProviderGarbled(f"The model's answer ended with {type(error).__name__}."))

    def next_item(self, timer: SilenceTimer, turn_ends: float) -> str | Reply | Exception:
        """The next piece, the reply, or what the provider raised; an empty piece if there was none for a
        while. Raises when a deadline has passed.
        """
        began = time.monotonic()
        seconds = timer.next_wait(turn_ends - began)
        try:
            item = self.items.get(timeout=seconds)
        except Empty:
            timer.add(seconds)
            return ""
        if isinstance(item, Usage):
            timer.add(time.monotonic() - began)
            return ""
        timer.restart()
        return item

    def _put(self, item: str | Usage | Reply | Exception) -> None:
        count_item(self._call.meter, item)
        self.items.put(item)
