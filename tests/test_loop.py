"""The turn's loop with both of its drivers: every claim holds on threads and on asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    AsyncDriver,
    Deadlines,
    Event,
    Limits,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
    tool,
)
from agentapp.agents.provider import Message, Reply, ToolCall, Usage
from agentapp.agents.tools import MAX_RESULT_CHARS, ToolContext
from agentapp.errors import (
    ForeignScope,
    OutOfSteps,
    OutOfTokens,
    ProviderBusy,
    ProviderFailed,
    ProviderGarbled,
    ProviderTimeout,
    TurnTimeout,
)
from agentapp.isolation import ContextBinder, RequestScope, ThreadBinder
from tests.scripted import SPENT, AsyncScripted, Scripted, calls, hands_back, hands_over, scope

A = scope("a")


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@tool
def crash() -> str:
    """Always fails."""
    raise RuntimeError("/etc/secret: permission denied")


@tool
def exits() -> str:
    """Tries to end the process."""
    raise SystemExit(3)


@tool
def rubbish() -> object:
    """Returns what cannot be shown."""
    return object()


@tool
def huge() -> str:
    """Returns far too much."""
    return "x" * (MAX_RESULT_CHARS * 3)


TEAM = Team(
    Agent("triage", "You are first.", tools=(double, crash, exits, rubbish, huge)),
    (
        Agent("maths", "You calculate.", tools=(double,), description="sums"),
        Agent("time", "You know the time.", description="clocks"),
    ),
)


@dataclass
class Played:
    """What a turn did."""

    loop: TurnLoop
    events: list[Event] = field(default_factory=list)
    ticks: int = 0
    error: BaseException | None = None

    @property
    def text(self) -> str:
        return "".join(e.data["text"] for e in self.events if e.kind == "text")

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events if e.kind != "text"]

    def note(self, event: Event | None) -> None:
        if event is None:
            self.ticks += 1
        else:
            self.events.append(event)

    def note_all(self, events: Iterable[Event | None]) -> None:
        for event in events:
            self.note(event)


Play = Callable[..., Played]


@pytest.fixture(params=["threads", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    """Plays one turn of answers and returns the model and what happened."""

    def start(
        *answers: Any,
        text: str = "hello",
        agent: str = "",
        team: Team = TEAM,
        limits: Limits | None = None,
        deadlines: Deadlines | None = None,
        model: list[Any] | None = None,
    ) -> Played:
        loop = TurnLoop(A, team.build(A), Opening(text, (), agent), "some-model", limits or Limits())
        played = Played(loop)
        threaded = request.param == "threads"
        provider = Scripted(*answers) if threaded else AsyncScripted(*answers)
        if model is not None:
            model.append(provider)
        try:
            if threaded:
                binder = ThreadBinder()
                played.note_all(ThreadedDriver(provider, binder, deadlines).run(loop, ToolContext(A)))
            else:
                asyncio.run(_play_async(AsyncDriver(provider, ContextBinder(), deadlines), loop, played))  # type: ignore[arg-type]
        except Exception as error:
            played.error = error
        return played

    return start


async def _play_async(driver: AsyncDriver, loop: TurnLoop, played: Played) -> None:
    async for event in driver.run(loop, ToolContext(A)):
        played.note(event)


def asked(model: list[Any]) -> list[Any]:
    found: list[Any] = model[0].asked
    return found


def test_a_turn_without_a_specialist_costs_one_model_call(play: Play) -> None:
    turn = play("Good day to you")
    assert turn.text == "Good day to you"
    assert turn.loop.usage == SPENT
    assert turn.kinds() == ["agent_started", "agent_thinking", "agent_completed"]
    assert turn.loop.stays_with == ""


def test_the_model_is_told_the_history_then_the_message() -> None:
    history = (Message("user", ("one",)), Message("assistant", ("two",)))
    loop = TurnLoop(A, TEAM.build(A), Opening("three", history), "m")
    actions = loop.run()
    asks = [action for action in (next(actions) for _ in range(3)) if hasattr(action, "call")]
    assert [m.texts for m in asks[0].call.messages] == [("one",), ("two",), ("three",)]
    assert asks[0].call.system == "You are first."


def test_triage_hands_over_with_parameters_and_the_session_stays_there(play: Play) -> None:
    model: list[Any] = []
    turn = play(hands_over("maths", "double it", number=21), "It is 42", model=model)
    assert turn.text == "It is 42"
    assert turn.loop.answering == turn.loop.stays_with == "maths"
    assert turn.loop.usage == SPENT + SPENT
    handed = next(e for e in turn.events if e.kind == "handed_over")
    assert handed.data == {"from": "triage", "to": "maths", "task": "double it", "parameters": {"number": 21}}
    said = asked(model)[1]
    assert said.system == "You calculate."
    assert said.messages[-1].texts == (
        "hello",
        '[Handed over by triage] Task: double it Parameters: {"number": 21}',
    )
    assert [spec.name for spec in said.tools] == ["double", "hand_back"]


def test_a_session_that_is_with_a_specialist_starts_there_with_one_call(play: Play) -> None:
    turn = play("still me", agent="maths")
    assert turn.loop.usage == SPENT
    assert turn.loop.stays_with == "maths"


def test_a_specialist_that_hands_back_frees_the_session(play: Play) -> None:
    model: list[Any] = []
    turn = play(hands_back("wants a poem"), "Roses are red", agent="maths", model=model)
    assert turn.text == "Roses are red"
    assert turn.loop.stays_with == ""
    assert asked(model)[1].messages[-1].texts == ("hello", "[Handed back by maths] wants a poem")


def test_front_goes_on_where_it_handed_over_when_the_specialist_hands_back(play: Play) -> None:
    model: list[Any] = []
    play(hands_over("maths"), hands_back("did that"), "and so on", model=model)
    last = asked(model)[2].messages[-1]
    assert [(r.call_id, r.content, r.is_error) for r in last.results] == [
        ("call-0", "[Handed back by maths] did that", False)
    ]


def test_a_session_whose_specialist_is_gone_starts_with_the_front_agent(play: Play) -> None:
    assert play("hello", agent="retired").loop.answering == "triage"


@pytest.mark.parametrize("to", ["nobody", None, 7, "triage"])
def test_a_hand_over_to_nobody_is_told_to_the_front_agent(play: Play, to: object) -> None:
    turn = play(calls(("hand_over", {"to": to, "task": "x"})), "then I do it")
    assert turn.text == "then I do it"
    assert turn.loop.answering == "triage"


def test_a_failed_hand_over_falls_back_to_the_front_agent(play: Play) -> None:
    model: list[Any] = []
    spent = Usage(3, 0, 1)
    turn = play(hands_over("maths"), ProviderBusy("overloaded", usage=spent), "I can try", model=model)
    assert turn.error is None
    assert turn.text == "I can try"
    assert turn.loop.usage == SPENT + spent + SPENT
    assert turn.loop.stays_with == ""
    assert asked(model)[2].messages[-1].results[0].is_error


def test_after_half_an_answer_there_is_no_falling_back(play: Play) -> None:
    turn = play(hands_over("maths"), lambda call: iter(["half ", ProviderGarbled("cut")]))
    assert isinstance(turn.error, ProviderGarbled)
    assert turn.text == "half "


def test_a_failed_triage_fails_the_turn_and_keeps_its_usage(play: Play) -> None:
    turn = play(ProviderFailed("no", usage=Usage(7, 0, 1)))
    assert isinstance(turn.error, ProviderFailed)
    assert turn.loop.usage == Usage(7, 0, 1)
    assert turn.loop.stays_with == ""


def test_tools_run_and_the_model_sees_their_results(play: Play) -> None:
    model: list[Any] = []
    turn = play(calls(("double", {"number": 4}), ("double", {"number": 5})), "8 and 10", model=model)
    results = asked(model)[1].messages[-1].results
    assert [(r.call_id, r.content, r.is_error) for r in results] == [
        ("call-0", "8", False),
        ("call-1", "10", False),
    ]
    assert turn.kinds().count("tool_completed") == 2


def test_texts_of_several_calls_are_parted(play: Play) -> None:
    turn = play(Reply("Let me see.", (ToolCall("1", "double", {"number": 1}),), SPENT), "It is 2.")
    assert turn.text == "Let me see.\n\nIt is 2."


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("crash", {}, "crash failed: it raised RuntimeError"),
        ("exits", {}, "exits failed: it raised SystemExit"),
        ("rubbish", {}, "rubbish failed: the tool returned a object"),
        ("double", {"number": "many"}, "double failed: number:"),
        ("double", {}, "double failed: number: Field required"),
        ("double", {"number": 1, "extra": 2}, "double failed: extra:"),
        ("double", "not even an object", "double failed: the input must be a JSON object"),
        ("unheard_of", {}, "unheard_of failed: there is no such tool"),
        ("hand_back", {"summary": "x"}, "hand_back failed: there is no such tool"),
    ],
)
def test_a_tool_that_fails_is_told_to_the_model_and_never_ends_the_turn(
    play: Play, name: str, given: object, told: str
) -> None:
    model: list[Any] = []
    turn = play(calls((name, given)), "never mind", model=model)
    assert turn.error is None
    assert turn.text == "never mind"
    result = asked(model)[1].messages[-1].results[0]
    assert result.is_error
    assert result.content.startswith(told)
    assert "secret" not in result.content


def test_a_tool_that_returns_too_much_is_cut(play: Play) -> None:
    model: list[Any] = []
    play(calls(("huge", {})), "long", model=model)
    content = asked(model)[1].messages[-1].results[0].content
    assert len(content) < MAX_RESULT_CHARS + 100
    assert "60,000 characters in all" in content


def test_a_hanging_tool_becomes_a_result_and_the_others_are_kept(play: Play) -> None:
    release = threading.Event()

    @tool
    def hangs() -> str:
        """Never ends by itself."""
        release.wait(30)
        return "too late"

    model: list[Any] = []
    team = Team(Agent("solo", "Go.", tools=(hangs, double)))
    started = time.monotonic()
    turn = play(
        calls(("hangs", {}), ("double", {"number": 3})),
        "went on",
        team=team,
        deadlines=Deadlines(tool=0.2),
        model=model,
    )
    release.set()
    assert turn.text == "went on"
    assert time.monotonic() - started < 10
    first, second = asked(model)[1].messages[-1].results
    assert first.is_error
    assert "did not end within 0.2 seconds" in first.content
    assert second.content == "6"


def test_tools_of_one_reply_run_in_parallel(play: Play) -> None:
    meeting = threading.Barrier(3)

    @tool
    def meet() -> str:
        """Returns only if two others are running at the same time."""
        meeting.wait(4)
        return "met"

    model: list[Any] = []
    play(
        calls(("meet", {}), ("meet", {}), ("meet", {})),
        "ok",
        team=Team(Agent("solo", "Go.", (meet,))),
        model=model,
    )
    assert [r.content for r in asked(model)[1].messages[-1].results] == ["met"] * 3


def test_an_async_tool_works_with_both_drivers(play: Play) -> None:
    @tool
    async def later(word: str) -> str:
        """The word, a little later."""
        await asyncio.sleep(0)
        return word

    model: list[Any] = []
    play(calls(("later", {"word": "yes"})), "ok", team=Team(Agent("solo", "Go.", (later,))), model=model)
    assert asked(model)[1].messages[-1].results[0].content == "yes"


def test_each_tool_has_its_scope_carried_in() -> None:
    binder, seen = ThreadBinder(), []

    @tool
    def who(context: ToolContext) -> str:
        """Who is asking."""
        seen.append((binder.current(), context.scope, threading.current_thread().name))
        return "you"

    loop = TurnLoop(A, Team(Agent("solo", "Go.", (who,))).build(A), Opening("hi"), "m")
    list(ThreadedDriver(Scripted(calls(("who", {}), ("who", {})), "ok"), binder).run(loop, ToolContext(A)))
    assert [s[:2] for s in seen] == [(A, A), (A, A)]
    assert threading.current_thread().name not in {s[2] for s in seen}


def test_a_turn_is_bounded_by_steps(play: Play) -> None:
    again = [calls(("double", {"number": 1}))] * 4
    turn = play(*again, limits=Limits(steps=4))
    assert isinstance(turn.error, OutOfSteps)
    assert turn.loop.usage.model_calls == 4


def test_a_turn_is_bounded_by_tokens_and_each_call_by_what_is_left(play: Play) -> None:
    model: list[Any] = []
    again = [calls(("double", {"number": 1}))] * 9
    turn = play(*again, limits=Limits(tokens=40, reply_tokens=1000), model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert [call.max_tokens for call in asked(model)] == [40, 25, 10]


def test_a_silent_model_is_given_up_at_the_first_token_deadline() -> None:
    release = threading.Event()

    def silent(call: object) -> Any:
        release.wait(30)
        yield "late"

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(silent), ThreadBinder(), Deadlines(first_token=0.2, tick=0.05))
    played = Played(loop)
    with pytest.raises(ProviderTimeout, match="did not begin to answer"):
        played.note_all(driver.run(loop, ToolContext(A)))
    release.set()
    assert played.ticks >= 2, "the reader was not told that the turn is alive"
    assert played.text == ""


def test_a_model_that_falls_silent_is_given_up_at_the_gap_deadline() -> None:
    release = threading.Event()

    def falls_silent(call: object) -> Any:
        yield "half "
        release.wait(30)
        yield "late"

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(falls_silent), ThreadBinder(), Deadlines(gap=0.2))
    played = Played(loop)
    with pytest.raises(ProviderTimeout, match="stopped answering"):
        played.note_all(driver.run(loop, ToolContext(A)))
    release.set()
    assert played.text == "half "


def test_progress_that_shows_nothing_still_tells_the_reader_that_all_is_well(play: Play) -> None:
    """A long tool input is streamed without a word of text."""

    def busy(call: object) -> Any:
        for _ in range(30):
            time.sleep(0.01)
            yield ""
        yield Reply("done")

    turn = play(busy, deadlines=Deadlines(tick=0.05, gap=0.2))
    assert turn.error is None
    assert turn.ticks >= 2


def test_a_slow_tool_tells_the_reader_that_all_is_well(play: Play) -> None:
    @tool
    def slow() -> str:
        """Takes a while."""
        time.sleep(0.3)
        return "done"

    team = Team(Agent("solo", "Go.", (slow,)))
    turn = play(calls(("slow", {})), "ok", team=team, deadlines=Deadlines(tick=0.05))
    assert turn.error is None
    assert turn.ticks >= 2


def test_a_reader_who_is_slow_is_not_the_models_silence() -> None:
    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted("one two three"), ThreadBinder(), Deadlines(gap=0.1, first_token=0.1))
    words = []
    for event in driver.run(loop, ToolContext(A)):
        time.sleep(0.15)
        if event is not None and event.kind == "text":
            words.append(event.data["text"])
    assert "".join(words) == "one two three"


def test_two_calls_with_one_id_both_get_their_result(play: Play) -> None:
    model: list[Any] = []
    twins = Reply("", (ToolCall("x", "double", {"number": 1}), ToolCall("x", "double", {"number": 2})), SPENT)
    play(twins, "ok", model=model)
    assert [r.content for r in asked(model)[1].messages[-1].results] == ["2", "4"]


def test_a_turn_as_a_whole_has_a_deadline() -> None:
    stop = threading.Event()

    def never_ends(call: object) -> Any:
        while not stop.wait(0.02):
            yield "more "

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(never_ends), ThreadBinder(), Deadlines(turn=0.3))
    with pytest.raises(TurnTimeout):
        list(driver.run(loop, ToolContext(A)))
    stop.set()


def test_async_deadlines_hold_too() -> None:
    class Silent(AsyncScripted):
        closed = False

        async def stream(self, call: Any) -> Any:
            try:
                yield "half "
                await asyncio.Event().wait()
            finally:
                self.closed = True

    model = Silent()
    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    played = Played(loop)

    async def main() -> None:
        driver = AsyncDriver(model, ContextBinder(), Deadlines(gap=0.2, tick=0.05))
        await _play_async(driver, loop, played)

    with pytest.raises(ProviderTimeout):
        asyncio.run(main())
    assert played.text == "half "
    assert played.ticks >= 1
    assert model.closed


def test_an_async_reader_who_leaves_closes_the_models_stream_at_once() -> None:
    class Talks(AsyncScripted):
        closed = False

        async def stream(self, call: Any) -> Any:
            try:
                while True:
                    yield "more "
                    await asyncio.sleep(0)
            finally:
                self.closed = True

    model = Talks()

    async def main() -> bool:
        loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
        events = AsyncDriver(model, ContextBinder()).run(loop, ToolContext(A))
        async for event in events:
            if event is not None and event.kind == "text":
                break
        await events.aclose()
        return model.closed

    assert asyncio.run(main())


def test_a_stream_without_a_reply_is_not_an_answer(play: Play) -> None:
    turn = play(lambda call: iter(["all ", "of it?"]))
    assert isinstance(turn.error, ProviderGarbled)


@pytest.mark.parametrize(("reason", "words"), [("refusal", "declined"), ("end_turn", "empty answer")])
def test_an_empty_answer_is_a_failure_that_says_why(play: Play, reason: str, words: str) -> None:
    turn = play(Reply("", usage=SPENT, stop_reason=reason))
    assert isinstance(turn.error, ProviderFailed)
    assert words in str(turn.error)
    assert turn.loop.usage == SPENT


def test_an_answer_cut_at_its_greatest_length_says_so(play: Play) -> None:
    turn = play(Reply("Once upon a", usage=SPENT, stop_reason="max_tokens"))
    assert turn.error is None
    assert turn.text.startswith("Once upon a\n\n[The answer was cut here")


def test_an_agent_refuses_any_scope_but_its_own_and_reports_it() -> None:
    reports: list[ForeignScope] = []
    agent = TEAM.build(A, reports.append).front
    for attempt in (
        lambda: agent.ask(scope("b"), "m", 10),
        lambda: agent.hear(scope("b"), Message("user", ("hi",))),
    ):
        with pytest.raises(ForeignScope, match="triage"):
            attempt()
    assert [r.asked for r in reports] == [scope("b")] * 2
    assert agent.is_fresh


def test_one_crew_cannot_serve_a_second_request() -> None:
    crew = TEAM.build(A)
    loop = TurnLoop(scope("b"), crew, Opening("hi"), "m")
    with pytest.raises(ForeignScope):
        list(ThreadedDriver(Scripted("hello"), ThreadBinder()).run(loop, ToolContext(scope("b"))))


def test_reset_brings_an_agent_back_to_just_made() -> None:
    agent, fresh = TEAM.build(A).front, TEAM.build(A).front
    agent.hear(A, Message("user", ("a secret",)))
    assert not agent.is_fresh
    agent.reset()
    assert agent.is_fresh
    assert agent.ask(A, "m", 10) == fresh.ask(A, "m", 10)


def test_every_build_is_fresh_and_shares_no_live_agent() -> None:
    one, two = TEAM.build(A), TEAM.build(A)
    assert one.front is not two.front
    assert not set(map(id, one.specialists)) & set(map(id, two.specialists))


def test_nothing_of_a_turn_survives_it() -> None:
    crew = TEAM.build(A)
    dead = [weakref.ref(crew), weakref.ref(crew.front), *map(weakref.ref, crew.specialists)]
    loop = TurnLoop(A, crew, Opening("hi"), "m")
    list(ThreadedDriver(Scripted(hands_over("maths"), "done"), ThreadBinder()).run(loop, ToolContext(A)))
    del crew, loop
    gc.collect()
    assert [ref() for ref in dead] == [None] * 4


def test_a_hundred_concurrent_tasks_keep_their_scopes_apart() -> None:
    binder = ContextBinder()
    seen: dict[str, set[RequestScope]] = {}

    @tool
    async def whose(context: ToolContext) -> str:
        """Whose turn is it?"""
        for _ in range(3):
            seen.setdefault(context.scope.user_id, set()).add(binder.current())
            await asyncio.sleep(0)
        return context.scope.user_id

    team = Team(Agent("solo", "Go.", (whose,)))

    async def one(name: str) -> str:
        mine = scope(name)
        model = AsyncScripted(calls(("whose", {})), lambda call: call.messages[-1].results[0].content)
        loop = TurnLoop(mine, team.build(mine), Opening(f"I am {name}"), "m")
        played = Played(loop)
        async for event in AsyncDriver(model, binder).run(loop, ToolContext(mine)):
            played.note(event)
        return played.text

    async def main() -> list[str]:
        return await asyncio.gather(*(one(str(n)) for n in range(100)))

    assert asyncio.run(main()) == [f"u-{n}" for n in range(100)]
    assert seen == {f"u-{n}": {scope(str(n))} for n in range(100)}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Agent("", "x"), "agent name"),
        (lambda: Agent("two words", "x"), "agent name"),
        (lambda: Agent("a", "  "), "needs instructions"),
        (lambda: Agent("a", "x", (double, double)), "there twice"),
        (lambda: Team(Agent("a", "x"), (Agent("a", "y"),)), "there twice"),
    ],
)
def test_a_team_described_wrongly_says_so(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


def test_a_tool_described_wrongly_says_so() -> None:
    def nothing_said(x: int) -> int:
        return x

    def untyped(x):  # type: ignore[no-untyped-def]
        """Has a docstring."""
        return x

    def starred(*x: int) -> int:
        """Has a docstring."""
        return 1

    for fn, complaint in ((nothing_said, "docstring"), (untyped, "needs a type"), (starred, "plain named")):
        with pytest.raises(TypeError, match=complaint):
            tool(fn)
    with pytest.raises(TypeError, match="not a tool"):
        Agent("a", "x", (len,))  # type: ignore[arg-type]


def test_a_tools_context_is_hidden_from_the_model() -> None:
    @tool(name="look")
    def lookup(context: ToolContext, word: str, times: int = 1) -> str:
        """Look a word up."""
        return word

    assert lookup.spec.name == "look"
    assert set(lookup.spec.input_schema["properties"]) == {"word", "times"}
    assert lookup.spec.input_schema["required"] == ["word"]
