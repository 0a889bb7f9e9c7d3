"""Ending a turn from another thread: at once wherever it waits, paid for, and with the model hung up on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents import (
    Agent,
    AsyncDriver,
    Deadlines,
    Event,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
    tool,
)
from agentapp.agents.actions import AskModel
from agentapp.agents.cancellation import Cancellation
from agentapp.agents.provider import Provider, Reply
from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.anthropic.cancelling import make_cancellable, sending_for
from agentapp.agents.providers.retrying import Retrying
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    ProviderError,
    ProviderTimeout,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
    TurnTimeout,
)
from agentapp.events import Usage
from agentapp.isolation import ContextBinder, ThreadBinder
from tests.agents.providers.test_anthropic import KEY, call, good, reply_of
from tests.support.messages_api import MessagesApi, Script
from tests.support.scripted import SPENT, Scripted, calls, scope

A = scope("a")
TEAM = Team(Agent("front", "You are first."), (Agent("other", "You are second.", description="more"),))
AT_ONCE = 3.0  # seconds: enough for a busy machine, and less than any tick, deadline or silence in here
SILENT = {
    "before the head": "[[hang:60]]",
    "after the head": "[[mute:60]] one two",
    "in the middle": "[[stall:60]] one two",
}


class Halt(Future[Any]):
    """Halted by another thread as soon as ``ready`` has returned, which may wait for something."""

    def __init__(self, ready: Callable[[], object], error: TurnFailed | None = None) -> None:
        super().__init__()
        self._ready, self.error, self.at = ready, error or TurnStopped(), 0.0
        threading.Thread(target=self._fire, name="agentapp-halting", daemon=True).start()

    def _fire(self) -> None:
        self._ready()
        self.at = time.monotonic()
        self.set_exception(self.error)


def turn(text: str = "hello", agent: str = "", team: Team = TEAM) -> TurnLoop:
    return TurnLoop(A, team.build(A), Opening(text, (), agent), "some-model")


def play(
    provider: Provider,
    loop: TurnLoop,
    halt: Future[Any] | None = None,
    deadlines: Deadlines | None = None,
    seen: Callable[[Event | None], object] = lambda event: None,
) -> str:
    """The text of the turn, or of as much of it as there was before a failure, which is let out."""
    said: list[str] = []
    for event in ThreadedDriver(provider, ThreadBinder(), deadlines).run(loop, ToolContext(A), halt):
        said += [event.data["text"]] if event and event.kind == "text" else []
        seen(event)
    return "".join(said)


def play_halted(provider: Provider, loop: TurnLoop, halt: Halt, **how: Any) -> None:
    with pytest.raises(type(halt.error)) as caught:
        play(provider, loop, halt, **how)
    assert time.monotonic() - halt.at < AT_ONCE
    assert caught.value is halt.error


def listeners_end() -> bool:
    """Whether every thread that listens to a model ends at once."""
    until = time.monotonic() + AT_ONCE
    listeners = [thread for thread in threading.enumerate() if thread.name == "agentapp-model"]
    for thread in listeners:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in listeners)


def is_left(api: MessagesApi) -> bool:
    return api.wait_until(lambda api: api.open_connections == 0, AT_ONCE)


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as running:
        yield running


@pytest.fixture
def claude(api: MessagesApi) -> Iterator[AnthropicProvider]:
    provider = AnthropicProvider(KEY, api.url)
    yield provider
    provider.close()


def asked(api: MessagesApi, times: int = 1) -> Callable[[], bool]:
    return lambda: api.wait_until(lambda api: len(api.requests) == times)


class Talks:
    """A model that says its pieces, then keeps silent until it is released; then it says the rest."""

    def __init__(self, *pieces: str | Usage, rest: tuple[Any, ...] = ("late",)) -> None:
        self._pieces, self._rest = pieces, rest
        self.silent, self.released = threading.Event(), threading.Event()

    def stream(self, call: object) -> Iterator[Any]:
        yield from self._pieces
        self.silent.set()
        self.released.wait(30)
        yield from self._rest


class Heard(threading.Event):
    """Sees the events of a turn, and is set by the first text among them."""

    def __call__(self, event: Event | None) -> None:
        if event and event.kind == "text":
            self.set()


@pytest.mark.parametrize("error", [TurnStopped(), TurnInterrupted()], ids=lambda error: error.code)
def test_a_halt_is_nobodys_fault_and_speaks_for_itself(error: TurnFailed) -> None:
    assert (error.blame, error.usage) == ("nobody", None)
    assert str(error)
    model = Talks("half ")
    play_halted(model, turn(), Halt(model.silent.wait, error))
    model.released.set()


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_silent_model_is_left_at_once_and_hung_up_on(
    api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    play_halted(claude, turn(text), Halt(asked(api)))
    assert listeners_end()
    assert is_left(api)
    assert play(claude, turn("next")) == "You said: next"
    assert api.connections == 2


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_connection_used_before_is_hung_up_on_as_well(
    api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    assert play(claude, turn("first")) == "You said: first"
    play_halted(claude, turn(text), Halt(asked(api, 2)))
    assert listeners_end()
    assert is_left(api)
    assert api.connections == 1


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_deadline_hangs_up_too(api: MessagesApi, claude: AnthropicProvider, text: str) -> None:
    """The longer of the two deadlines is what the connection itself would wait for."""
    deadlines = Deadlines(first_token=0.3, gap=30) if "stall" not in text else Deadlines(gap=0.3)
    with pytest.raises(ProviderTimeout):
        play(claude, turn(text), deadlines=deadlines)
    assert listeners_end()
    assert is_left(api)
    assert play(claude, turn("next")) == "You said: next"


def test_a_reader_who_leaves_hangs_up_too(api: MessagesApi, claude: AnthropicProvider) -> None:
    events = ThreadedDriver(claude, ThreadBinder()).run(turn("[[stall:60]] one two"), ToolContext(A))
    next(event for event in events if event and event.kind == "text")
    events.close()
    assert listeners_end()
    assert is_left(api)


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
    assert listeners_end()
    assert is_left(api)
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
    assert listeners_end()
    assert play(claude, turn()) == "You said: hello"
    assert api.connections == 1


@pytest.mark.parametrize("text", ["[[hang:60]]", "[[status:529]] [[retry-after:20]]"], ids=["call", "wait"])
def test_a_halted_call_is_not_tried_again(api: MessagesApi, claude: AnthropicProvider, text: str) -> None:
    play_halted(Retrying(claude), turn(text), Halt(asked(api)))
    assert listeners_end()
    assert len(api.requests) == 1


def test_a_second_try_over_the_same_connection_is_hung_up_on_as_well(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    api.respond_with([Script(status=529), Script(delay=60)])
    play_halted(Retrying(claude, sleep=lambda seconds: None), turn(), Halt(asked(api, 2)))
    assert listeners_end()
    assert is_left(api)
    assert api.connections == 1


def test_a_loop_that_is_stopped_while_it_asks_a_specialist_goes_no_further() -> None:
    actions = turn(agent="other").run()
    assert next(action for action in actions if isinstance(action, AskModel))
    with pytest.raises(TurnStopped):
        actions.throw(TurnStopped())


def test_a_halted_specialist_does_not_hand_back_to_the_front() -> None:
    def silent(call: object) -> Iterator[str]:
        begun.set()
        released.wait(30)
        yield "late"

    begun, released = threading.Event(), threading.Event()
    model = Scripted(silent, "I can try")
    loop = turn(agent="other")
    play_halted(model, loop, Halt(begun.wait))
    released.set()
    assert len(model.asked) == 1
    assert (loop.answering, loop.stays_with) == ("other", "")


def test_nothing_is_asked_once_the_turn_is_halted() -> None:
    halt: Future[Any] = Future()
    halt.set_exception(TurnInterrupted())
    model, loop = Scripted("never said"), turn()
    with pytest.raises(TurnInterrupted):
        play(model, loop, halt)
    assert (model.asked, loop.spent) == ([], ())


@pytest.mark.parametrize("kind", ["agent_started", "tool_executing", "tool_completed"])
def test_a_halt_between_two_actions_takes_effect_before_the_next(kind: str) -> None:
    ran: list[bool] = []
    seen: list[str] = []

    @tool
    def note() -> str:
        """Notes that it ran."""
        ran.append(True)
        return "done"

    def halt_at(event: Event | None) -> None:
        if event:
            seen.append(event.kind)
            if event.kind == kind:
                halt.set_exception(TurnStopped())

    halt: Future[Any] = Future()
    model = Scripted(calls(("note", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (note,))))
    with pytest.raises(TurnStopped):
        play(model, loop, halt, seen=halt_at)
    assert seen[-1] == kind, "nothing more is told"
    assert len(ran) == (kind == "tool_completed")
    assert len(model.asked) == (kind != "agent_started")
    assert loop.usage == (SPENT if model.asked else Usage())


def test_a_turn_is_halted_while_its_tools_run() -> None:
    begun, released = threading.Barrier(3), threading.Event()

    @tool
    def hangs() -> str:
        """Takes its time."""
        begun.wait(5)
        released.wait(30)
        return "late"

    model = Scripted(calls(("hangs", {}), ("hangs", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (hangs,))))
    play_halted(model, loop, Halt(lambda: begun.wait(5)), deadlines=Deadlines(tool=30, tick=30))
    released.set()
    assert len(model.asked) == 1
    assert loop.usage == SPENT


def test_a_tool_that_ends_does_not_end_the_wait_for_the_others() -> None:
    released = threading.Event()

    @tool
    def quick() -> str:
        """Ends at once."""
        return "quick"

    @tool
    def slow() -> str:
        """Ends when the driver has seen that the other one ended."""
        return f"slow {released.wait(20)}"

    def release(event: Event | None) -> None:
        if event is None:  # the first sign of life: by the clock it would come too late
            released.set()

    model = Scripted(calls(("quick", {}), ("slow", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (quick, slow))))
    play(model, loop, Future(), Deadlines(tool=10, tick=60), release)
    assert [result.content for result in model.asked[1].messages[-1].results] == ["quick", "slow True"]


def test_an_answer_that_is_whole_but_not_told_yet_when_it_is_stopped_is_no_answer() -> None:
    def stop(event: Event | None) -> None:
        if event and event.kind == "text":
            model.released.set()
            assert listeners_end()  # so that the whole answer waits to be told
            halt.set_exception(TurnStopped())

    whole = Usage(100, 40, 1)
    halt: Future[Any] = Future()
    model = Talks("half ", rest=("of it", Reply("half of it", usage=whole)))
    loop = turn()
    said: list[Event | None] = []
    with pytest.raises(TurnStopped):
        play(model, loop, halt, seen=lambda event: (said.append(event), stop(event)))
    assert [event.data["text"] for event in said if event and event.kind == "text"] == ["half "]
    assert loop.stays_with == ""
    assert loop.usage == whole, "what it cost is known, and is not guessed"


@pytest.mark.parametrize(
    ("told", "said", "paid"),
    [
        (Usage(100, 1, 1), "x" * 40, Usage(100, 10, 1)),
        (Usage(100, 1, 1), "x" * 41, Usage(100, 11, 1)),
        (Usage(100, 1, 1), "", Usage(100, 1, 1)),
        (Usage(100, 50, 1), "x" * 40, Usage(100, 50, 1)),
        (Usage(), "x", Usage(0, 1, 0)),
    ],
)
@pytest.mark.parametrize("error", [TurnStopped, TurnInterrupted])
def test_what_was_heard_of_a_halted_answer_is_paid_for(
    told: Usage, said: str, paid: Usage, error: type[TurnFailed]
) -> None:
    model, loop, heard = Talks(told, said), turn(), Heard()
    play_halted(model, loop, Halt(heard.wait if said else model.silent.wait, error()), seen=heard)
    model.released.set()
    assert loop.spent == (("some-model", paid),)


def test_an_answer_that_fails_by_itself_costs_what_was_told() -> None:
    for deadlines, error in ((Deadlines(gap=0.1), ProviderTimeout), (Deadlines(turn=0.1), TurnTimeout)):
        model, loop = Talks(Usage(100, 1, 1), "x" * 400), turn()
        with pytest.raises(error):
            play(model, loop, deadlines=deadlines)
        model.released.set()
        assert loop.usage == Usage(100, 1, 1)


def test_a_halted_answer_of_the_real_api_is_paid_for(api: MessagesApi, claude: AnthropicProvider) -> None:
    api.respond_with(Script(("a piece of twenty ch",), fault="stall:60", input_tokens=17, output_tokens=500))
    loop, heard = turn(), Heard()
    play_halted(claude, loop, Halt(heard.wait), seen=heard)
    assert loop.usage == Usage(17, 5, 1)


def test_a_line_is_hung_up_once_whichever_comes_first() -> None:
    ended: list[str] = []
    early, late, over = Cancellation(), Cancellation(), Cancellation()
    early.cancel()
    early.on_cancel(lambda: ended.append("early"))
    late.on_cancel(lambda: ended.append("replaced"))
    late.on_cancel(lambda: ended.append("late"))
    late.cancel()
    late.cancel()
    over.on_cancel(lambda: ended.append("over"))
    over.clear()
    over.cancel()
    assert ended == ["early", "late"]
    assert all(line.is_cancelled for line in (early, late, over))


def test_a_call_that_is_hung_up_on_before_it_begins_sends_nothing(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    asking = call()
    asking.cancellation.cancel()
    with pytest.raises(ProviderError):
        list(claude.stream(asking))
    assert is_left(api)
    assert api.requests == ()


def test_hanging_up_is_no_failure_in_the_log(
    api: MessagesApi, claude: AnthropicProvider, caplog: pytest.LogCaptureFixture
) -> None:
    play_halted(claude, turn("[[hang:60]]"), Halt(asked(api)))
    assert listeners_end()
    assert caplog.records == []


class Clinging(Cancellation):
    """Never lets go of a connection, as if somebody hung up at the worst moment."""

    def clear(self) -> None:
        pass


def test_hanging_up_too_late_leaves_the_call_alone_that_has_the_connection_now(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    before = call(cancellation=Clinging())
    reply_of(list(claude.stream(before)))
    go_on = threading.Event()

    def when_told(_: object) -> Script:
        go_on.wait(30)
        return Script(("undisturbed",))

    api.respond_with(when_told)
    threading.Thread(
        target=lambda: (asked(api, 2)(), before.cancellation.cancel(), go_on.set()), name="agentapp-late"
    ).start()
    assert reply_of(list(claude.stream(call()))).text == "undisturbed"
    assert api.connections == 1


def test_a_connection_hung_up_on_in_the_pool_is_not_used_again(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    before = call(cancellation=Clinging())
    reply_of(list(claude.stream(before)))
    before.cancellation.cancel()
    assert reply_of(list(claude.stream(call()))).text == "You said: hello"
    assert (len(api.requests), api.connections) == (2, 2)


def test_a_connection_hung_up_on_while_the_pool_hands_it_out_is_changed_for_another(api: MessagesApi) -> None:
    before, line = Clinging(), Cancellation()
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}

    def hang_up(event: str, _: object) -> None:
        if event == "http11.send_request_headers.started":
            before.cancel()

    with make_cancellable(httpx2.Client(base_url=api.url, headers=headers, trust_env=False)) as client:
        with sending_for(before):
            assert client.post("/v1/messages", json=good()).status_code == 200
        with sending_for(line):
            answer = client.post("/v1/messages", json=good(), extensions={"trace": hang_up})
            assert answer.status_code == 200
    assert before.is_cancelled
    assert (len(api.requests), api.connections) == (2, 2)


def test_a_client_whose_pools_are_not_found_is_left_as_it_is() -> None:
    class OfTomorrow:
        """Keeps them under other names."""

    client: Any = OfTomorrow()
    assert reachable(client) is client
    assert vars(client) == {}


def test_a_call_by_way_of_a_proxy_is_hung_up_on_too(
    api: MessagesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", api.url)
    provider = AnthropicProvider(KEY, "http://model.invalid")
    play_halted(provider, turn("[[hang:60]]"), Halt(asked(api)))
    assert listeners_end()
    assert is_left(api)
    provider.close()


def test_a_client_of_ones_own_is_hung_up_on_once_it_has_the_head(api: MessagesApi) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        provider, heard = AnthropicProvider(client=client), Heard()
        play_halted(provider, turn("[[stall:60]] one two"), Halt(heard.wait), seen=heard)
        assert listeners_end()
        assert is_left(api)
        asking = call(cancellation=Clinging())
        reply_of(list(provider.stream(asking)))
        asking.cancellation.cancel()
        assert reply_of(list(provider.stream(call()))).text == "You said: hello"
        assert api.connections == 2, "what is over is left alone"


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_a_cancelled_task_closes_the_models_stream_at_once(api: MessagesApi, text: str) -> None:
    async def main() -> None:
        provider = AsyncAnthropicProvider(KEY, api.url)
        task = asyncio.create_task(heard(provider))
        assert await asyncio.to_thread(asked(api))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await asyncio.to_thread(is_left, api)
        await provider.close()

    async def heard(provider: AsyncAnthropicProvider) -> None:
        async for _ in AsyncDriver(provider, ContextBinder()).run(turn(text), ToolContext(A)):
            pass

    asyncio.run(main())
