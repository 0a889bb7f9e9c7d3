"""How often a tool may be called, with both drivers."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    Limits,
    Team,
    tool,
)
from agentapp.agents.provider import Reply
from tests.agents.playing import Play, Played, results_of
from tests.support.scripted import calls, hands_back, hands_over


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
