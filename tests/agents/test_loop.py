"""The turn's loop with both of its drivers: every claim holds on threads and on asyncio."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from agentapp.agents import (
    Opening,
    TurnLoop,
)
from agentapp.agents.provider import Message, Reply, ToolCall
from agentapp.errors import (
    Declined,
    EmptyAnswer,
    ProviderBusy,
    ProviderFailed,
    ProviderGarbled,
)
from agentapp.events import Usage
from tests.agents.playing import TEAM, A, Play, asked
from tests.support.scripted import SPENT, calls, hands_back, hands_over


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
    assert asks[0].call.system == TEAM.front.system_for(A)


def test_triage_hands_over_with_parameters_and_the_session_stays_there(play: Play) -> None:
    model: list[Any] = []
    turn = play(hands_over("maths", "double it", number=21), "It is 42", model=model)
    assert turn.text == "It is 42"
    assert turn.loop.answering == turn.loop.stays_with == "maths"
    assert turn.loop.usage == SPENT + SPENT
    handed = next(e for e in turn.events if e.kind == "handed_over")
    assert handed.data == {"from": "triage", "to": "maths", "task": "double it", "parameters": {"number": 21}}
    said = asked(model)[1]
    assert said.system.endswith("You calculate.")
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


def test_whoever_looks_at_any_moment_sees_each_call_once() -> None:
    """The heartbeat reads on a thread of its own what the loop has spent, between any two lines of it."""
    loop = TurnLoop(A, TEAM.build(A), Opening("hello"), "m")
    actions, seen = loop.run(), list[int]()

    def look(frame: FrameType, what: str, _: Any) -> Any:
        if frame.f_code.co_filename == TurnLoop.run.__code__.co_filename and frame.f_code.co_name != "_spent":
            sys.settrace(None)
            seen.append(len(loop.spent_if_cut))
            sys.settrace(look)
            return look
        return None

    for answer in (None, None, None, hands_over("maths"), None, None, None, None, Reply("42", usage=SPENT)):
        before = sys.gettrace()
        sys.settrace(look)
        try:
            actions.send(answer)
        finally:
            sys.settrace(before)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 2), "and none is gone for a moment"


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


def test_texts_of_several_calls_are_separated_by_a_blank_line(play: Play) -> None:
    turn = play(Reply("Let me see.", (ToolCall("1", "double", {"number": 1}),), SPENT), "It is 2.")
    assert turn.text == "Let me see.\n\nIt is 2."


def test_two_calls_with_one_id_both_get_their_result(play: Play) -> None:
    model: list[Any] = []
    twins = Reply("", (ToolCall("x", "double", {"number": 1}), ToolCall("x", "double", {"number": 2})), SPENT)
    play(twins, "ok", model=model)
    assert [r.content for r in asked(model)[1].messages[-1].results] == ["2", "4"]


def test_a_stream_without_a_reply_is_not_an_answer(play: Play) -> None:
    turn = play(lambda call: iter(["all ", "of it?"]))
    assert isinstance(turn.error, ProviderGarbled)


@pytest.mark.parametrize(("reason", "words"), [("refusal", "declined"), ("end_turn", "empty answer")])
def test_an_empty_answer_is_a_failure_that_says_why(play: Play, reason: str, words: str) -> None:
    turn = play(Reply("", usage=SPENT, stop_reason=reason))
    assert isinstance(turn.error, Declined if reason == "refusal" else EmptyAnswer)
    assert turn.error.code == "provider-failed"
    assert words in str(turn.error)
    assert turn.loop.usage == SPENT


def test_a_model_that_declines_or_says_nothing_is_not_the_providers_failure(play: Play) -> None:
    """Or anybody could have the model taken away from others, with a question it will not answer."""
    declined = play(Reply("", usage=SPENT, stop_reason="refusal")).error
    empty = play(Reply("", usage=SPENT)).error
    assert isinstance(declined, Declined)
    assert isinstance(empty, EmptyAnswer)
    assert (declined.blame, empty.blame) == ("nobody", "turn")


def test_an_answer_cut_at_its_greatest_length_says_so(play: Play) -> None:
    turn = play(Reply("Once upon a", usage=SPENT, stop_reason="max_tokens"))
    assert turn.error is None
    assert turn.text.startswith("Once upon a\n\n[The answer was cut here")
