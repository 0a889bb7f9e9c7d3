"""Halting a turn that runs in asyncio: as on threads, at once wherever it waits, and paid for."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from agentapp.agents import Agent, AsyncDriver, Deadlines, Event, Reply, Team, TurnLoop, Usage, tool
from agentapp.agents.provider import AsyncProvider
from agentapp.agents.providers.anthropic import AsyncAnthropicProvider
from agentapp.agents.providers.retrying import AsyncRetrying
from agentapp.agents.tool import ToolContext
from agentapp.errors import TurnFailed, TurnInterrupted, TurnStopped
from agentapp.isolation import ContextBinder
from tests.agents.drivers.halts import AT_ONCE, SILENT, A, FirstText, Halt, all_connections_close, asked, turn
from tests.agents.providers.anthropic.asking import KEY
from tests.support.messages_api import MessagesApi
from tests.support.scripted import SPENT, AsyncScripted, calls


class FallsSilent:
    """A model that says its pieces and then nothing more. It notes that its stream was closed."""

    def __init__(self, *pieces: Any) -> None:
        self._pieces = pieces
        self.silent = threading.Event()
        self.closed = False

    async def stream(self, call: object) -> AsyncIterator[Any]:
        try:
            for piece in self._pieces:
                yield piece
            self.silent.set()
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def run(
    provider: AsyncProvider,
    loop: TurnLoop,
    halt: Future[Any],
    deadlines: Deadlines | None = None,
    seen: Callable[[Event | None], object] = lambda event: None,
) -> str:
    """The text of the turn. Whatever ends it is raised."""
    said: list[str] = []
    async for event in AsyncDriver(provider, ContextBinder(), deadlines).run(loop, ToolContext(A), halt):
        said += [event.data["text"]] if event and event.kind == "text" else []
        seen(event)
    return "".join(said)


def play_halted(provider: AsyncProvider, loop: TurnLoop, halt: Halt, **how: Any) -> None:
    with pytest.raises(type(halt.error)) as caught:
        asyncio.run(run(provider, loop, halt, **how))
    assert time.monotonic() - halt.at < AT_ONCE
    assert caught.value is halt.error


@pytest.mark.parametrize("error", [TurnStopped(), TurnInterrupted()], ids=lambda error: error.code)
def test_a_silent_model_is_left_at_once_and_its_stream_is_closed(error: TurnFailed) -> None:
    model = FallsSilent("half ")
    play_halted(model, turn(), Halt(model.silent.wait, error))
    assert model.closed


def test_a_task_of_the_same_event_loop_may_halt_a_turn() -> None:
    model, halt = FallsSilent("half "), Future[Any]()

    def halt_at_text(event: Event | None) -> None:
        if event and event.kind == "text":
            asyncio.get_running_loop().call_soon(halt.set_exception, TurnStopped())

    with pytest.raises(TurnStopped):
        asyncio.run(run(model, turn(), halt, seen=halt_at_text))
    assert model.closed


def test_nothing_is_asked_once_the_turn_is_halted() -> None:
    halt: Future[Any] = Future()
    halt.set_exception(TurnInterrupted())
    model, loop = AsyncScripted("never said"), turn()
    with pytest.raises(TurnInterrupted):
        asyncio.run(run(model, loop, halt))
    assert (model.asked, loop.spent) == ([], ())


@pytest.mark.parametrize("kind", ["agent_started", "tool_executing", "tool_completed"])
def test_a_halt_between_two_actions_takes_effect_before_the_next(kind: str) -> None:
    ran: list[bool] = []
    seen: list[str] = []

    @tool
    async def note() -> str:
        """Notes that it ran."""
        ran.append(True)
        return "done"

    def halt_at(event: Event | None) -> None:
        if event:
            seen.append(event.kind)
            if event.kind == kind:
                halt.set_exception(TurnStopped())

    halt: Future[Any] = Future()
    model = AsyncScripted(calls(("note", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (note,))))
    with pytest.raises(TurnStopped):
        asyncio.run(run(model, loop, halt, seen=halt_at))
    assert seen[-1] == kind, "nothing more is told"
    assert len(ran) == (kind == "tool_completed")
    assert len(model.asked) == (kind != "agent_started")
    assert loop.usage == (SPENT if model.asked else Usage())


def test_a_turn_is_halted_while_its_tools_run() -> None:
    """An async tool is cancelled. One on a thread goes on, but nobody waits for it."""
    begun, released, ended = threading.Barrier(3), threading.Event(), []

    @tool
    def hangs() -> str:
        """Takes its time on a thread."""
        begun.wait(5)
        released.wait(30)
        return "late"

    @tool
    async def waits() -> str:
        """Takes its time in the event loop."""
        await asyncio.to_thread(begun.wait, 5)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return "late"

    async def main() -> None:
        halt = Halt(lambda: begun.wait(5))
        with pytest.raises(TurnStopped):
            await run(model, loop, halt, Deadlines(tool=30, tick=30))
        assert time.monotonic() - halt.at < AT_ONCE
        await asyncio.sleep(0)
        assert ended == ["cancelled"]

    model = AsyncScripted(calls(("hangs", {}), ("waits", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (hangs, waits))))
    asyncio.run(main())
    released.set()
    assert len(model.asked) == 1
    assert loop.usage == SPENT


def test_a_tool_that_failed_before_a_halt_leaves_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    @tool
    async def fails() -> str:
        """Fails at once."""
        failed.set()
        raise RuntimeError

    @tool
    async def waits() -> str:
        """Never ends by itself."""
        await asyncio.Event().wait()
        return "never"

    model = AsyncScripted(calls(("fails", {}), ("waits", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (fails, waits))))
    halt = Halt(failed.wait)
    play_halted(model, loop, halt, deadlines=Deadlines(tool=30, tick=30))
    halt.error.__traceback__ = None  # it holds the frames, and they hold the tools' tasks
    gc.collect()
    assert caplog.records == []


def test_a_tool_that_ends_does_not_end_the_wait_for_the_others() -> None:
    released = threading.Event()

    @tool
    async def quick() -> str:
        """Ends at once."""
        return "quick"

    @tool
    def slow() -> str:
        """Ends when the driver has seen that the other one ended."""
        return f"slow {released.wait(20)}"

    def release(event: Event | None) -> None:
        if event is None:  # this comes when the quick tool ends; the next tick would be too late
            released.set()

    model = AsyncScripted(calls(("quick", {}), ("slow", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (quick, slow))))
    asyncio.run(run(model, loop, Future(), Deadlines(tool=10, tick=60), release))
    assert [result.content for result in model.asked[1].messages[-1].results] == ["quick", "slow True"]


def test_a_halted_specialist_does_not_hand_back_to_the_front() -> None:
    model, loop = FallsSilent(), turn(agent="other")
    play_halted(model, loop, Halt(model.silent.wait))
    assert (loop.answering, loop.stays_with) == ("other", "")


def test_an_answer_that_is_whole_but_not_shown_yet_when_it_is_stopped_is_no_answer() -> None:
    whole, halt, shown = Usage(100, 40, 1), Future[Any](), []

    def stop(event: Event | None) -> None:
        if event and event.kind == "text":
            shown.append(event.data["text"])
            halt.set_exception(TurnStopped())

    async def main() -> None:
        async for event in AsyncDriver(model, ContextBinder()).run(loop, ToolContext(A), halt):
            stop(event)
            await asyncio.sleep(0.01)  # so that the whole answer waits to be shown

    model = FallsSilent("half of it", Reply("half of it", usage=whole))
    loop = turn()
    with pytest.raises(TurnStopped):
        asyncio.run(main())
    assert shown == ["half of it"]
    assert loop.stays_with == ""
    assert loop.usage == whole, "what it cost is known, and is not guessed"


@pytest.mark.parametrize(
    ("told", "said", "paid"),
    [
        (Usage(100, 1, 1), "x" * 41, Usage(100, 11, 1)),
        (Usage(100, 1, 1), "", Usage(100, 1, 1)),
        (Usage(100, 50, 1), "x" * 40, Usage(100, 50, 1)),
    ],
)
@pytest.mark.parametrize("error", [TurnStopped, TurnInterrupted])
def test_what_was_shown_of_a_halted_answer_is_paid_for(
    told: Usage, said: str, paid: Usage, error: type[TurnFailed]
) -> None:
    model, loop, first_text = FallsSilent(told, said), turn(), FirstText()
    play_halted(model, loop, Halt(first_text.wait if said else model.silent.wait, error()), seen=first_text)
    assert [each[1:] for each in loop.spent] == [("some-model", paid)]


def test_a_halt_after_the_event_loop_is_closed_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    halt: Future[Any] = Future()
    assert asyncio.run(run(AsyncScripted("all of it"), turn(), halt)) == "all of it"
    halt.set_exception(TurnStopped())
    assert caplog.records == []


@pytest.fixture
def claude(api: MessagesApi) -> AsyncAnthropicProvider:
    return AsyncAnthropicProvider(KEY, api.url)


async def run_and_close(provider: Any, claude: AsyncAnthropicProvider, text: str, halt: Future[Any]) -> str:
    try:
        return await run(provider, turn(text), halt)
    finally:
        await claude.close()


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_halt_ends_the_call_of_a_silent_api_and_its_connection(
    api: MessagesApi, claude: AsyncAnthropicProvider, text: str
) -> None:
    async def main() -> None:
        halt = Halt(asked(api))
        with pytest.raises(TurnStopped):
            await run(claude, turn(text), halt)
        assert time.monotonic() - halt.at < AT_ONCE
        assert await asyncio.to_thread(all_connections_close, api)
        assert await run_and_close(claude, claude, "next", Future()) == "You said: next"

    asyncio.run(main())
    assert api.connections == 2


@pytest.mark.parametrize("text", ["[[hang:60]]", "[[status:529]] [[retry-after:20]]"], ids=["call", "wait"])
def test_a_halted_call_is_not_tried_again(
    api: MessagesApi, claude: AsyncAnthropicProvider, text: str
) -> None:
    halt = Halt(asked(api))
    with pytest.raises(TurnStopped):
        asyncio.run(run_and_close(AsyncRetrying(claude), claude, text, halt))
    assert time.monotonic() - halt.at < AT_ONCE
    assert len(api.requests) == 1
