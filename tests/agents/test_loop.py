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
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, Reply, ToolCall
from agentapp.agents.results import MAX_RESULT_CHARS
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    Declined,
    ForeignScope,
    OutOfSteps,
    OutOfTokens,
    ProviderBusy,
    ProviderFailed,
    ProviderGarbled,
    ProviderTimeout,
    TurnTimeout,
)
from agentapp.events import Usage
from agentapp.isolation import ContextBinder, RequestScope, ThreadBinder
from tests.support.scripted import SPENT, AsyncScripted, Scripted, calls, hands_back, hands_over, scope

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
        prices: Prices | None = None,
        called_before: dict[str, int] | None = None,
    ) -> Played:
        loop = TurnLoop(
            A,
            team.build(A),
            Opening(text, (), agent),
            "some-model",
            limits or Limits(),
            prices or Prices(),
            called_before or {},
        )
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
        ("double", {"number": "many"}, "double failed: number: "),
        ("double", {}, "double failed: number: "),
        ("double", {"number": 1, "extra": 2}, "double failed: extra: "),
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
    assert result.content[-1] not in ": "  # the reason is there, in whoever's words
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


def results_of(model: list[Any], call: int) -> list[tuple[str, str, bool]]:
    """What the model was told of its tools in that call of it."""
    results = asked(model)[call].messages[-1].results
    return [(result.call_id, result.content, result.is_error) for result in results]


def limited(turn: Played) -> list[bool]:
    return [event.data["limited"] for event in turn.events if event.kind == "tool_completed"]


def counted(**limits: int) -> tuple[Team, list[str]]:
    """A team whose tool `once` is limited, and what `once` and `often` were really called with."""
    ran: list[str] = []

    @tool(name="once", **limits)
    def limited_tool(word: str) -> str:
        """Has a limit."""
        ran.append(word)
        return f"did {word}"

    @tool
    def often(word: str) -> str:
        """Has none."""
        ran.append(word)
        return f"did {word}"

    front = Agent("front", "Go.", (limited_tool, often))
    return Team(front, (Agent("other", "Go on.", (limited_tool,)),)), ran


def once(*words: str) -> Reply:
    return calls(*(("once", {"word": word}) for word in words))


def test_a_tool_may_be_called_so_often_in_a_turn_and_the_model_is_told_when_it_is_over(play: Play) -> None:
    model: list[Any] = []
    team, ran = counted(per_turn=2)
    turn = play(once("a"), once("b"), once("c"), "enough", team=team, model=model)
    assert turn.text == "enough", "a limit never ends a turn"
    assert ran == ["a", "b"]
    assert results_of(model, 2) == [("call-0", "did b", False)]
    assert results_of(model, 3) == [("call-0", "once failed: its limit of 2 a turn is reached", True)]
    assert limited(turn) == [False, False, True]
    assert turn.loop.called == {"once": 2}, "what was not run is not counted"


def test_of_calls_made_at_once_the_first_are_run_and_results_stay_in_the_order_of_the_calls(
    play: Play,
) -> None:
    model: list[Any] = []
    team, ran = counted(per_turn=2)
    mixed = calls(
        ("often", {"word": "a"}),
        ("once", {"word": "b"}),
        ("unheard_of", {}),
        ("once", {"word": "c"}),
        ("once", {"word": "d"}),
        ("often", {"word": "e"}),
    )
    turn = play(mixed, "ok", team=team, model=model)
    assert sorted(ran) == ["a", "b", "c", "e"]
    assert [(id, content.split(":")[0]) for id, content, _ in results_of(model, 1)] == [
        ("call-0", "did a"),
        ("call-1", "did b"),
        ("call-2", "unheard_of failed"),
        ("call-3", "did c"),
        ("call-4", "once failed"),
        ("call-5", "did e"),
    ]
    assert limited(turn) == [False, False, False, False, True, False]
    done = [e.data["call_id"] for e in turn.events if e.kind == "tool_completed"]
    assert done == [f"call-{n}" for n in range(6)]


def test_a_reply_whose_calls_are_all_beyond_their_limit_runs_nothing_and_goes_on(play: Play) -> None:
    model: list[Any] = []
    team, ran = counted(per_turn=1)
    turn = play(once("a"), once("b", "c"), "ok", team=team, model=model)
    assert (turn.text, ran) == ("ok", ["a"])
    assert [failed for _, _, failed in results_of(model, 2)] == [True, True]


def test_a_tool_may_be_called_so_often_in_a_chat_counting_the_turns_before(play: Play) -> None:
    model: list[Any] = []
    team, ran = counted(per_session=3)
    turn = play(once("a"), once("b"), "ok", team=team, model=model, called_before={"once": 2, "often": 99})
    assert ran == ["a"]
    assert results_of(model, 2) == [("call-0", "once failed: its limit of 3 a chat is reached", True)]
    assert turn.loop.called == {"once": 1}, "only those of this turn: the others are counted already"


def test_a_chat_that_has_had_more_than_its_calls_gets_none(play: Play) -> None:
    """The limit may have been lowered since."""
    team, ran = counted(per_session=3)
    assert limited(play(once("a"), "ok", team=team, called_before={"once": 50})) == [True]
    assert ran == []


@pytest.mark.parametrize(
    ("own", "limits", "runs"),
    [
        ({"per_turn": 1}, Limits(tool_calls_turn=3), 1),
        ({"per_turn": 3}, Limits(tool_calls_turn=1), 1),
        ({}, Limits(tool_calls_turn=2), 2),
        ({"per_session": 2}, Limits(tool_calls_session=4), 1),
        ({"per_session": 4}, Limits(tool_calls_session=2), 1),
        ({}, Limits(tool_calls_session=3), 2),
        ({"per_turn": 2}, Limits(tool_calls_session=2), 1),
        ({"per_session": 2}, Limits(tool_calls_turn=2), 1),
        ({}, Limits(), 4),
    ],
)
def test_of_the_tools_own_limit_and_that_of_all_tools_the_tighter_counts(
    play: Play, own: dict[str, int], limits: Limits, runs: int
) -> None:
    team, ran = counted(**own)
    turn = play(once("a", "b", "c", "d"), "ok", team=team, limits=limits, called_before={"once": 1})
    assert len(ran) == runs
    assert limited(turn) == [False] * runs + [True] * (4 - runs)


def test_the_limit_of_all_tools_is_for_each_of_them_and_not_for_all_together(play: Play) -> None:
    team, ran = counted()
    both = calls(*((name, {"word": name}) for name in ("once", "often", "once", "often")))
    assert limited(play(both, "ok", team=team, limits=Limits(tool_calls_turn=1))) == [
        False,
        False,
        True,
        True,
    ]
    assert sorted(ran) == ["often", "once"]


def test_tools_that_do_not_exist_are_neither_counted_nor_limited(play: Play) -> None:
    model: list[Any] = []
    unheard = calls(*(("unheard_of", {}),) * 3)
    turn = play(unheard, "ok", limits=Limits(tool_calls_turn=1, tool_calls_session=1), model=model)
    assert limited(turn) == [False] * 3
    assert turn.loop.called == {}
    assert {content for _, content, _ in results_of(model, 1)} == {"unheard_of failed: there is no such tool"}


def test_a_call_that_failed_counts_too(play: Play) -> None:
    model: list[Any] = []
    turn = play(
        calls(("crash", {}), ("double", {"number": "x"})),
        calls(("crash", {}), ("double", {"number": 2})),
        "ok",
        limits=Limits(tool_calls_turn=1),
        model=model,
    )
    assert limited(turn) == [False, False, True, True]


def test_two_agents_with_the_same_tool_have_its_calls_between_them(play: Play) -> None:
    model: list[Any] = []
    team, ran = counted(per_turn=2)
    turn = play(once("a"), hands_over("other"), once("b", "c"), "done", team=team, model=model)
    assert turn.loop.answering == "other"
    assert sorted(ran) == ["a", "b"]
    assert limited(turn) == [False, False, True]


def test_handing_over_is_no_call_of_a_tool(play: Play) -> None:
    team, _ = counted()
    turn = play(
        hands_over("other"),
        hands_back(),
        hands_over("other"),
        "done",
        team=team,
        limits=Limits(tool_calls_turn=1, tool_calls_session=1),
    )
    assert (turn.text, turn.loop.called) == ("done", {})


@pytest.mark.parametrize("limit", [{"per_turn": 0}, {"per_session": 0}, {"per_turn": -1}])
def test_a_tool_that_may_never_be_called_is_a_mistake(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="should not be given to an agent"):
        tool(**limit)  # type: ignore[call-overload]


CHEAP = Prices([("some-model", 1.0, 2.0), ("dear-model", 1.0, 10.0)])  # millionths of a dollar for a token


def test_a_turn_is_bounded_by_money_and_each_call_by_what_can_still_be_paid(play: Play) -> None:
    """Each call costs 10 tokens in at 1 and 5 out at 2: that is 20."""
    model: list[Any] = []
    again = [calls(("double", {"number": 1}))] * 9
    turn = play(*again, limits=Limits(microusd=70, reply_tokens=30), prices=CHEAP, model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert (turn.error.code, turn.error.blame) == ("budget-exhausted", "nobody")
    assert [call.max_tokens for call in asked(model)] == [30, 25, 15, 5]
    assert turn.loop.usage.model_calls == 4, "the call that cannot be paid is not made"


def test_a_call_that_cannot_be_paid_at_all_is_not_even_the_first(play: Play) -> None:
    model: list[Any] = []
    turn = play("never said", limits=Limits(microusd=1), prices=CHEAP, model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert asked(model) == []
    assert turn.loop.usage == Usage()


def test_what_can_be_paid_goes_by_the_model_of_the_agent_who_asks(play: Play) -> None:
    model: list[Any] = []
    team = Team(Agent("front", "Go."), (Agent("other", "Go on.", model="dear-model"),))
    limits = Limits(microusd=200)
    play(hands_over("other"), "done", team=team, limits=limits, prices=CHEAP, model=model)
    assert [(call.model, call.max_tokens) for call in asked(model)] == [
        ("some-model", 100),
        ("dear-model", 18),
    ]


def test_of_tokens_and_money_the_one_that_is_less_bounds_a_call(play: Play) -> None:
    for limits, most in ((Limits(tokens=40, microusd=60), 30), (Limits(tokens=20, microusd=60), 20)):
        model: list[Any] = []
        play("ok", limits=limits, prices=CHEAP, model=model)
        assert [call.max_tokens for call in asked(model)] == [most]


def test_failed_calls_are_paid_too(play: Play) -> None:
    model: list[Any] = []
    failed = ProviderBusy("overloaded", usage=Usage(60, 0, 1))
    play(hands_over("maths"), failed, "ok", limits=Limits(microusd=100), prices=CHEAP, model=model)
    assert [call.max_tokens for call in asked(model)] == [50, 40, 10]


def test_a_model_of_unknown_price_is_held_to_money_as_the_dearest_and_a_free_one_not_at_all(
    play: Play,
) -> None:
    model: list[Any] = []
    play("ok", limits=Limits(microusd=750), prices=Prices(), model=model)
    play("ok", limits=Limits(microusd=0), prices=Prices(free=True), model=model)
    play("ok", limits=Limits(microusd=None), prices=Prices(), model=model)
    assert [provider.asked[0].max_tokens for provider in model] == [10, 8_192, 8_192]


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
    assert isinstance(turn.error, Declined if reason == "refusal" else ProviderFailed)
    assert turn.error.code == "provider-failed"
    assert words in str(turn.error)
    assert turn.loop.usage == SPENT


def test_a_model_that_declines_is_nobodys_failure(play: Play) -> None:
    """Or anybody could have the model taken away from everybody, with a question it will not answer."""
    declined = play(Reply("", usage=SPENT, stop_reason="refusal")).error
    empty = play(Reply("", usage=SPENT)).error
    assert isinstance(declined, Declined)
    assert isinstance(empty, ProviderFailed)
    assert (declined.blame, empty.blame) == ("nobody", "provider")


def test_an_answer_cut_at_its_greatest_length_says_so(play: Play) -> None:
    turn = play(Reply("Once upon a", usage=SPENT, stop_reason="max_tokens"))
    assert turn.error is None
    assert turn.text.startswith("Once upon a\n\n[The answer was cut here")


def test_an_agent_refuses_any_scope_but_its_own_and_reports_it() -> None:
    reports: list[ForeignScope] = []
    agent = TEAM.build(A, reports.append).front
    for attempt in (
        lambda: agent.make_call(scope("b"), "m", 10),
        lambda: agent.add_messages(scope("b"), Message("user", ("hi",))),
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
    agent.add_messages(A, Message("user", ("a secret",)))
    assert not agent.is_fresh
    agent.reset()
    assert agent.is_fresh
    assert agent.make_call(A, "m", 10) == fresh.make_call(A, "m", 10)


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
