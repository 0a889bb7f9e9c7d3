"""The call of a real API is ended with the turn: at once, and its connection is not used again."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress

import pytest

from agentapp.agents import (
    AsyncDriver,
    Deadlines,
    ThreadedDriver,
)
from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.retrying import Retrying
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    ProviderError,
    ProviderTimeout,
)
from agentapp.events import Usage
from agentapp.isolation import ContextBinder, ThreadBinder
from tests.agents.drivers.halts import (
    SILENT,
    A,
    FirstText,
    Halt,
    all_connections_close,
    asked,
    play,
    play_halted,
    reading_threads_end,
    turn,
)
from tests.agents.providers.anthropic.asking import KEY
from tests.support.messages_api import MessagesApi, Script


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_halt_leaves_a_silent_model_at_once_and_cancels_its_call(
    api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    play_halted(claude, turn(text), Halt(asked(api)))
    assert reading_threads_end()
    assert all_connections_close(api)
    assert play(claude, turn("next")) == "You said: next"
    assert api.connections == 2


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_call_on_a_connection_used_before_is_cancelled_too(
    api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    assert play(claude, turn("first")) == "You said: first"
    play_halted(claude, turn(text), Halt(asked(api, 2)))
    assert reading_threads_end()
    assert all_connections_close(api)
    assert api.connections == 1


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_deadline_cancels_the_call_too(api: MessagesApi, claude: AnthropicProvider, text: str) -> None:
    """The longer of the two deadlines is what the connection itself would wait for."""
    deadlines = Deadlines(first_token=0.3, gap=30) if "stall" not in text else Deadlines(gap=0.3)
    with pytest.raises(ProviderTimeout):
        play(claude, turn(text), deadlines=deadlines)
    assert reading_threads_end()
    assert all_connections_close(api)
    assert play(claude, turn("next")) == "You said: next"


def test_a_reader_who_leaves_cancels_the_call_too(api: MessagesApi, claude: AnthropicProvider) -> None:
    events = ThreadedDriver(claude, ThreadBinder()).run(turn("[[stall:60]] one two"), ToolContext(A))
    next(event for event in events if event and event.kind == "text")
    events.close()
    assert reading_threads_end()
    assert all_connections_close(api)


@pytest.mark.parametrize("status", [200, 529])
def test_the_connection_of_a_late_answer_is_closed_and_never_used_again(
    api: MessagesApi, claude: AnthropicProvider, status: int
) -> None:
    """Even of an answer that comes whole."""
    answer = threading.Event()

    def late(_: object) -> Script:
        answer.wait(30)
        return Script(("late",), status=status)

    api.respond_with(late)
    play_halted(claude, turn(), Halt(asked(api)))
    answer.set()
    assert reading_threads_end()
    assert all_connections_close(api)
    api.respond_with(Script(("in time",)))
    assert play(claude, turn()) == "in time"
    assert api.connections == 2


def test_turns_that_end_well_share_a_connection(api: MessagesApi, claude: AnthropicProvider) -> None:
    for _ in range(3):
        assert play(claude, turn(), Future()) == "You said: hello"
    assert (len(api.requests), api.connections) == (3, 1)


def test_a_call_that_failed_by_itself_leaves_its_connection_to_the_next(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    with pytest.raises(ProviderError):
        play(claude, turn("[[status:529]]"))
    assert reading_threads_end()
    assert play(claude, turn()) == "You said: hello"
    assert api.connections == 1


@pytest.mark.parametrize("text", ["[[hang:60]]", "[[status:529]] [[retry-after:20]]"], ids=["call", "wait"])
def test_a_halted_call_is_not_tried_again(api: MessagesApi, claude: AnthropicProvider, text: str) -> None:
    play_halted(Retrying(claude), turn(text), Halt(asked(api)))
    assert reading_threads_end()
    assert len(api.requests) == 1


def test_a_second_attempt_on_the_same_connection_is_cancelled_too(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    api.respond_with([Script(status=529), Script(delay=60)])
    play_halted(Retrying(claude, sleep=lambda seconds: None), turn(), Halt(asked(api, 2)))
    assert reading_threads_end()
    assert all_connections_close(api)
    assert api.connections == 1


def test_a_halted_answer_of_the_real_api_is_paid_for(api: MessagesApi, claude: AnthropicProvider) -> None:
    api.respond_with(Script(("a piece of twenty ch",), fault="stall:60", input_tokens=17, output_tokens=500))
    loop, first_text = turn(), FirstText()
    play_halted(claude, loop, Halt(first_text.wait), seen=first_text)
    assert loop.usage == Usage(17, 5, 1)


def test_a_cancelled_call_is_not_logged_as_a_failure(
    api: MessagesApi, claude: AnthropicProvider, caplog: pytest.LogCaptureFixture
) -> None:
    play_halted(claude, turn("[[hang:60]]"), Halt(asked(api)))
    assert reading_threads_end()
    assert caplog.records == []


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_cancelled_task_closes_the_models_stream_at_once(api: MessagesApi, text: str) -> None:
    async def main() -> None:
        provider = AsyncAnthropicProvider(KEY, api.url)
        task = asyncio.create_task(read_all(provider))
        assert await asyncio.to_thread(asked(api))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await asyncio.to_thread(all_connections_close, api)
        await provider.close()

    async def read_all(provider: AsyncAnthropicProvider) -> None:
        async for _ in AsyncDriver(provider, ContextBinder()).run(turn(text), ToolContext(A)):
            pass

    asyncio.run(main())
