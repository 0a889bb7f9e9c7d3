"""Events: each kind declared once, the same after it was stored, and shown whatever version stored it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from agentapp.events import (
    KINDS,
    MAX_KEPT_CHARS,
    AgentCompleted,
    AgentStarted,
    AgentThinking,
    Event,
    HandedOver,
    OtherEvent,
    Text,
    ToolCompleted,
    ToolExecuting,
    TurnCompleted,
    TurnResult,
    TurnStarted,
    Usage,
    agent_of,
    from_json,
    storable,
    text_of,
    unpacked,
)

SAMPLES: tuple[Event, ...] = (
    TurnStarted("t", "s", "hello"),
    AgentStarted("triage"),
    AgentThinking("triage"),
    HandedOver("triage", "maths", "a sum", {"x": 1}),
    ToolExecuting("1", "calculate", {"expression": "1+1"}),
    ToolCompleted("1", "calculate", "2", failed=False, limited=False),
    Text("It is 2."),
    AgentCompleted("maths"),
)
HALF = "\ud83d"


def test_every_kind_has_a_name_of_its_own_and_a_sample_here() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    assert {type(sample) for sample in SAMPLES} | {TurnCompleted} == set(KINDS)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.kind)
def test_an_event_is_the_same_after_it_was_stored(event: Event) -> None:
    kind, data = json.loads(json.dumps([event.kind, event.data]))
    assert from_json(kind, data) == event
    assert from_json(kind, data).data == event.data


def test_the_events_of_an_ended_turn_are_the_same_again() -> None:
    log = json.loads(json.dumps([event.packed() for event in SAMPLES]))
    assert unpacked(log, "hello", "It is 2.") == list(SAMPLES)
    assert "It is 2." not in json.dumps(log), "the words are in the messages, once"
    assert "hello" not in json.dumps(log)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("approval_needed", {"call_id": "1"}),
        ("agent_started", {"agent": "triage", "model": "of tomorrow"}),
        ("tool_completed", {"call_id": "1", "name": "calculate"}),
    ],
    ids=["another kind", "one field more", "fields missing"],
)
def test_what_another_version_stored_is_shown_as_it_was(kind: str, data: dict[str, Any]) -> None:
    event = from_json(kind, data)
    assert (event.kind, event.data, event.packed()) == (kind, data, [kind, data])
    assert isinstance(event, OtherEvent)


def test_what_no_database_can_hold_is_replaced_and_what_is_endless_is_cut() -> None:
    assert Text(f"a\0b{HALF}").cleaned() == Text("a\ufffdb\ufffd")
    long = ToolCompleted("1", "x", "y" * (MAX_KEPT_CHARS + 1), failed=False, limited=False).cleaned()
    assert len(long.output) == MAX_KEPT_CHARS
    for given in ({"x": float("nan")}, {"x": "y" * MAX_KEPT_CHARS}, {"x": HALF}):
        kept = ToolExecuting("1", "x", given).cleaned().input
        assert isinstance(kept, str)
        assert len(kept) <= MAX_KEPT_CHARS
        json.dumps(kept, allow_nan=False).encode()
    assert HandedOver(HALF, "b", "\0", {"fine": 1}).cleaned() == HandedOver(
        "\ufffd", "b", "\ufffd", {"fine": 1}
    )


def test_two_halves_of_a_character_become_whole_and_one_half_is_replaced() -> None:
    assert storable("\ud83d\ude00") == "\N{GRINNING FACE}"
    assert storable(f"{HALF}!") == "\ufffd!"
    assert storable("as it is") == "as it is"


def test_text_and_agent_are_read_off_the_events() -> None:
    assert text_of([*SAMPLES, Text(" Yes.")]) == "It is 2. Yes."
    assert agent_of([*SAMPLES, AgentStarted("maths")]) == "maths"
    assert agent_of([Text("x")]) == ""


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (TurnResult("completed"), "succeeded"),
        (TurnResult("completed", blame="turn"), "succeeded"),
        (TurnResult("failed", blame="turn"), "failed"),
        (TurnResult("failed", blame="provider"), "failed"),
        (TurnResult("failed", blame="nobody"), "abandoned"),
        (TurnResult("stopped", blame="turn"), "abandoned"),
        (TurnResult("interrupted", blame="provider"), "abandoned"),
    ],
)
def test_only_a_failure_that_is_somebodys_counts(result: TurnResult, verdict: str) -> None:
    assert result.verdict == verdict


def test_the_last_event_shows_the_result_and_an_error_only_if_there_is_one() -> None:
    done = TurnCompleted(
        "t", "r", TurnResult("completed", "hi", usage=Usage(9, 2, 1, 4, 3), cost_microusd=5)
    ).data
    assert (done["status"], done["reply"], done["cost_usd"]) == ("completed", "hi", 0.000005)
    assert done["usage"] == {
        "input_tokens": 9,
        "output_tokens": 2,
        "model_calls": 1,
        "cache_read_tokens": 4,
        "cache_write_tokens": 3,
    }
    assert "error" not in done
    failed = TurnCompleted("t", "r", TurnResult("failed", error_code="busy", error_message="Later.")).data
    assert failed["error"] == {"code": "busy", "message": "Later."}


def test_what_is_for_the_guardrails_is_not_shown() -> None:
    shown = TurnCompleted("t", "r", TurnResult("failed", blame="provider", tool_calls=(("x", 1),))).data
    hidden = {"charged_microusd", "tool_calls", "blame", "next_agent"}
    assert hidden <= {each.name for each in fields(TurnResult)}
    assert not hidden & shown.keys()
