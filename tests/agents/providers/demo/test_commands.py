"""The commands of the demo model."""

from __future__ import annotations

import pytest

from agentapp.agents.providers.demo import DemoProvider, answer
from agentapp.errors import OutOfSteps, ProviderFailed, ProviderGarbled
from agentapp.events import Usage
from tests.agents.providers.demo.asking import MATHS, MEMORY, asked, calls_in, play


def test_help_names_every_command() -> None:
    reply = play("/help").reply
    for command in ("/call", "/handover", "/handback", "/fail", "/slow", "/long", "/loop", "/markdown"):
        assert command in reply


def test_call_command_calls_the_tool_once_with_any_json() -> None:
    assert calls_in(answer(asked('/call calculate {"expression": "1+"}', tools=MATHS))) == [
        ("calculate", {"expression": "1+"})
    ]
    assert calls_in(answer(asked("/call calculate 7", tools=MATHS))) == [("calculate", 7)]
    assert calls_in(answer(asked("/call list_notes", tools=MEMORY))) == [("list_notes", {})]
    assert play('/call calculate {"expression": "6*7"}', agent="maths").path == ("calculate",)


def test_call_command_refuses_what_is_not_offered_and_what_is_no_json() -> None:
    assert "'calculate' is not offered" in play("/call calculate {}").reply
    assert "not valid JSON: {oops" in play("/call calculate {oops", agent="maths").reply


def test_handover_command_reaches_the_specialist_who_tells_task_and_parameters() -> None:
    played = play('/handover time {"city": "Oslo", "n": 1}')
    assert played.path == ("time",)
    assert 'Parameters: {"city": "Oslo", "n": 1}' in played.reply
    assert played.stays_with == "time"


def test_handover_command_works_from_another_specialist() -> None:
    assert play("/handover time", agent="maths").path == ("triage", "time")


def test_handover_to_nobody_is_told() -> None:
    assert play("/handover nobody").reply.startswith("That did not work: hand_over failed")


def test_handback_command_returns_to_the_front_agent() -> None:
    played = play("/handback", agent="maths")
    assert played.path == ("triage",)
    assert "maths says:" in played.reply
    assert played.stays_with == ""
    assert "nobody to hand back to" in play("/handback").reply


@pytest.mark.parametrize("agent", ["", "maths"])
def test_fail_command_fails_the_turn_whoever_has_it(agent: str) -> None:
    with pytest.raises(ProviderFailed):
        play("/fail", agent=agent)


def test_fail_later_says_some_words_and_tells_what_they_cost() -> None:
    stream = DemoProvider(delay=0).stream(asked("/fail later"))
    said = [next(stream) for _ in range(6)]
    with pytest.raises(ProviderGarbled) as caught:
        next(stream)
    assert "".join(map(str, said)) == "This answer will be cut off "
    assert caught.value.usage == Usage(answer(asked("/fail later")).usage.input_tokens, 7, 1)


@pytest.mark.parametrize(("seconds", "waits"), [("2.5", [1.0, 1.0, 0.5]), ("999", [1.0] * 300), ("nan", [])])
def test_slow_command_waits_in_small_steps_and_shows_that_it_lives(seconds: str, waits: list[float]) -> None:
    slept: list[float] = []
    items = list(DemoProvider(delay=0, sleep=slept.append).stream(asked(f"/slow {seconds}")))
    assert slept == waits
    assert items[: len(waits) + 1].count("") == len(waits)


@pytest.mark.parametrize(("asked_for", "got"), [("7", 7), ("99999", 5000), ("", 200), ("-1", 200)])
def test_long_command_answers_with_that_many_words(asked_for: str, got: int) -> None:
    assert len(answer(asked(f"/long {asked_for}")).text.split()) == got


def test_markdown_command_shows_every_kind() -> None:
    text = answer(asked("/markdown")).text
    for mark in ("# A heading", "- first", "|---|", "```python", "](https://"):
        assert mark in text


@pytest.mark.parametrize("agent", ["", "maths", "memory"])
def test_loop_command_runs_into_the_step_limit(agent: str) -> None:
    with pytest.raises(OutOfSteps):
        play("/loop", agent=agent)


def test_loop_command_without_any_tool_says_so() -> None:
    assert answer(asked("/loop")).text == "I have no tool to call for ever."
