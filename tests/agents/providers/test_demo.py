from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentapp.agents.agent import Agent
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits, Opening, TurnLoop
from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, ToolResult, ToolSpec
from agentapp.agents.providers.demo import AsyncDemoProvider, DemoProvider, answer
from agentapp.agents.providers.demo.arithmetic import find_expressions
from agentapp.agents.providers.demo.tasks import find_tasks
from agentapp.agents.shipped import maths, team
from agentapp.agents.team import Team
from agentapp.agents.tool import ToolContext, tool
from agentapp.errors import OutOfSteps, ProviderFailed, ProviderGarbled
from agentapp.events import Usage
from agentapp.isolation import Scope, ThreadBinder

# A loaded machine is no failure.
unhurried = settings(deadline=None)

SCOPE = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
CREW = team.build(SCOPE)
FRONT = CREW.front.specs
MATHS, TIME, MEMORY = (specialist.specs for specialist in CREW.specialists)


def asked(*texts: str, tools: tuple[ToolSpec, ...] = (), since: tuple[Message, ...] = ()) -> ModelCall:
    return ModelCall("demo", "You help.", (Message("user", texts), *since), tools)


def calls_in(reply: Reply) -> list[tuple[str, Any]]:
    return [(made.name, made.input) for made in reply.calls]


class Shelf:
    def __init__(self) -> None:
        self.kept: list[str] = []

    def add(self, scope: Scope, text: str) -> int:
        self.kept.append(text)
        return len(self.kept)

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        return list(enumerate(self.kept, 1))

    def remove(self, scope: Scope, number: int) -> bool:
        return False

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        return [("Paints", "2026-01-02", f"something about {words}")]


@dataclass(frozen=True)
class Played:
    reply: str
    path: tuple[str, ...]
    stays_with: str


def play(text: str, *, agent: str = "", history: tuple[Message, ...] = (), own: Team = team) -> Played:
    """One whole turn of a real team, with the demo model and the real loop."""
    shelf = Shelf()
    context = ToolContext(SCOPE, shelf, shelf, now=lambda: datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
    loop = TurnLoop(SCOPE, own.build(SCOPE), Opening(text, history, agent), "demo", Limits(steps=12))
    driver = ThreadedDriver(DemoProvider(delay=0), ThreadBinder())
    reply, path = "", []
    for event in driver.run(loop, context):
        if event is None:
            continue
        reply += event.data["text"] if event.kind == "text" else ""
        path += [event.data["to"]] if event.kind == "handed_over" else []
        path += [event.data["name"]] if event.kind == "tool_executing" else []
    return Played(reply, tuple(path), loop.stays_with)


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ("what is 17*23?", ("maths", "calculate"), "17*23 = 391"),
        ("15% of 80", ("maths", "calculate"), "15% of 80 = 12"),
        ("sqrt(2)", ("maths", "calculate"), "sqrt(2) ≈ 1.414"),
        ("2+2 and 3*7", ("maths", "calculate", "calculate"), "3*7 = 21"),
        (
            "what time is it in Tokyo",
            ("time", "current_time"),
            "21:00 (UTC+09:00) in Asia/Tokyo",
        ),
        ("time in Tokyo and Paris", ("time", "current_time", "current_time"), "Europe/Paris"),
        ("days between 2026-01-01 and 2026-03-01", ("time", "days_between"), "59 days"),
        ("what is 3pm New York in London?", ("time", "convert_time"), "20:00 (UTC+00:00)"),
        (
            "When it is 9:00 in Berlin, what time is it in Tokyo?",
            ("time", "convert_time"),
            "17:00 (UTC+09:00)",
        ),
        (
            "if it's 3pm in New York what is the time in London?",
            ("time", "convert_time"),
            "20:00 (UTC+00:00)",
        ),
        ("30 days after 2026-01-01", ("time", "add_to_date"), "2026-01-31"),
        ("remember the blue door", ("memory", "add_note"), "the blue door"),
        ("my notes", ("memory", "list_notes"), "no notes"),
        ("search my chats for paint", ("memory", "search_past_chats"), "something about paint"),
    ],
)
def test_request_reaches_its_specialist_and_the_answer_quotes_the_result(
    text: str, path: tuple[str, ...], found: str
) -> None:
    played = play(text)
    assert played.path == path
    assert found in played.reply
    assert played.stays_with == path[0]


def test_failed_tool_is_told_plainly() -> None:
    assert play("what is 1/0?").reply == "That did not work: calculate failed: division by zero at position 2"


def test_message_for_two_specialists_is_answered_with_both_results() -> None:
    played = play("what time is it in Tokyo and what is 2+2?")
    assert played.path == ("time", "current_time", "triage", "maths", "calculate", "triage")
    assert "Asia/Tokyo" in played.reply
    assert "2+2 = 4" in played.reply


def test_specialist_hands_back_what_is_not_its_job() -> None:
    played = play("what time is it in Tokyo", agent="maths")
    assert played.path == ("triage", "time", "current_time")
    assert played.stays_with == "time"


def test_two_specialists_are_used_also_when_the_session_is_with_one_of_them() -> None:
    played = play("what is 2+2 and what time is it in Tokyo?", agent="maths")
    assert "2+2 = 4" in played.reply
    assert "Asia/Tokyo" in played.reply


@pytest.mark.parametrize("agent", ["", "maths", "time", "memory"])
@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "my mark is 7f3a-11-22",
        "12345678-1234-1234-1234-123456789012",
        "  odd   spaces\n\nand lines ",
        "[Handed over by nobody] mark-42",
        "/unknown mark-42",
        "pages 3-5",
        "long time no see",
    ],
)
def test_anything_else_is_said_back_word_for_word(text: str, agent: str) -> None:
    played = play(text, agent=agent)
    assert f"You said: {text}" in played.reply
    assert "offline demo" in played.reply


@pytest.mark.parametrize("text", ["what did I say?", "Recap", "recap please"])
def test_recap_lists_every_message_of_the_chat_word_for_word(text: str) -> None:
    history = (
        Message("user", ("first mark-1 ",)),
        Message("assistant", ("never mind",)),
        Message("user", ("[Handed second\nmark-2",)),
        Message("assistant", ("well",)),
    )
    reply = play(text, history=history).reply
    assert "first mark-1 " in reply
    assert "[Handed second\nmark-2" in reply
    assert text in reply
    assert "never mind" not in reply


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
    assert caught.value.usage == Usage(answer(asked("/fail later")).usage.input_tokens, 6, 1)


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


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"Rain in {city}."


@tool
def roll_dice(sides: int, colour: str = "red") -> str:
    """Roll."""
    return f"{colour} {sides}"


SHOP = Team(
    Agent("desk", "You are the desk.", (weather, roll_dice)),
    (
        Agent("billing", "You do billing.", description="Invoices, refunds and payments."),
        Agent("repairs", "You repair.", description="Broken or damaged goods."),
    ),
)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("I want my payment refunded", ("billing",)),
        ("my lamp is damaged", ("repairs",)),
        ("let me talk to billing", ("billing",)),
        ("what's the weather in Oslo?", ("weather",)),
        ("roll the dice with 20 sides", ("roll_dice",)),
        ("good morning", ()),
        ("what is 2+2?", ()),
    ],
)
def test_unknown_team_is_understood_from_its_descriptions(text: str, path: tuple[str, ...]) -> None:
    played = play(text, own=SHOP)
    assert played.path == path


def test_unknown_tool_gets_its_input_from_the_words() -> None:
    assert "Rain in Oslo." in play("what's the weather in Oslo?", own=SHOP).reply
    assert "red 20" in play("roll the dice with 20 sides", own=SHOP).reply
    assert "red 7" in play("roll the dice with 007 sides on 2026-01-02", own=SHOP).reply


def test_agent_with_a_fitting_tool_uses_it_instead_of_handing_over() -> None:
    alone = Team(Agent("solo", "You compute.", maths.tools), team.specialists)
    assert play("what is 17*23?", own=alone).path == ("calculate",)


def test_agent_without_tools_or_team_just_talks() -> None:
    played = play("what is 17*23?", own=Team(Agent("solo", "You talk.")))
    assert played == Played(played.reply, (), "")
    assert "You said: what is 17*23?" in played.reply


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("what is 17*23?", ["17*23"]),
        ("2+2, 3*7 and (1+1)^2.", ["2+2", "3*7", "(1+1)^2"]),
        ("max(1, 2) plus nothing", ["max(1, 2)"]),
        ("is 1,234 + 1 right?", ["1,234 + 1"]),
        ("10 plus 5", ["10 + 5"]),
        ("3 x 4", ["3 * 4"]),
        ("square root of 16", ["sqrt(16)"]),
        ("5!", ["5!"]),
        ("2+2!", ["2+2"]),
        ("(what is 2+2)", ["2+2"]),
        ("what is 10-3", ["10-3"]),
        ("10-3", ["10-3"]),
        ("pages 10-3", []),
        ("call 555-1234 or +1 555 123", []),
        ("mark-12-34", []),
        ("12-34abc", []),
        ("a716-446655440000", []),
        ("http://x.y/1-2", []),
        ("version 1.2.3", []),
        ("C++ 17", []),
        ("I have 3 apples", []),
    ],
)
def test_sums_are_told_from_other_numbers(text: str, sums: list[str]) -> None:
    assert list(find_expressions(text)) == sums


@pytest.mark.parametrize(
    "text", ["on 2026-03-01 at 10:30", "what is the time complexity of sorting", "good day to you"]
)
def test_dates_and_small_talk_are_no_jobs(text: str) -> None:
    assert find_tasks(text) == ()


def test_what_is_to_be_noted_is_not_computed() -> None:
    (job,) = find_tasks("remember that 2+2 and the time in Tokyo")
    assert (job.tool, job.input) == ("add_note", {"text": "2+2 and the time in Tokyo"})


@unhurried
@given(st.text(max_size=80), st.sampled_from([(), FRONT, MATHS, TIME, MEMORY]))
def test_same_call_always_gets_the_same_reply(text: str, tools: tuple[ToolSpec, ...]) -> None:
    call = asked(text, tools=tools)
    if text.split()[:1] != ["/fail"]:
        assert answer(call) == answer(replace(call))


@unhurried
@given(st.text(max_size=200), st.sampled_from([(), FRONT, MEMORY]))
def test_pieces_joined_are_the_reply(text: str, tools: tuple[ToolSpec, ...]) -> None:
    *pieces, reply = DemoProvider(delay=0).stream(asked(f"x{text}", tools=tools))
    assert isinstance(reply, Reply)
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == reply.text


def test_words_come_one_by_one_with_the_delay_between_them() -> None:
    slept: list[float] = []
    *pieces, _ = DemoProvider(delay=0.25, sleep=slept.append).stream(asked("/long 4"))
    assert pieces == ["1 ", "2 ", "3 ", "4"]
    assert slept == [0.25] * 3


def test_async_provider_says_the_same_and_awaits_the_same() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def heard() -> list[str | Reply]:
        return [item async for item in AsyncDemoProvider(delay=0.25, sleep=sleep).stream(call)]

    call = asked("/slow 1.5")
    also_slept: list[float] = []
    assert asyncio.run(heard()) == list(DemoProvider(delay=0.25, sleep=also_slept.append).stream(call))
    assert slept == also_slept


def test_usage_counts_everything_the_model_saw_at_about_four_characters_a_token() -> None:
    plain = answer(asked("hello"))
    assert plain.usage == Usage(len("You help.") // 4 + 1 + 2, -(-len(plain.text) // 4), 1)
    seen = Message("user", results=(ToolResult("1", "x" * 400),))
    done = Message("assistant", calls=(ToolCall("1", "t", {}),))
    assert answer(asked("hello", since=(done, seen))).usage.input_tokens >= plain.usage.input_tokens + 100
    assert answer(asked("hello", tools=MATHS)).usage.input_tokens > plain.usage.input_tokens


def test_answer_keeps_to_the_token_limit_and_says_so() -> None:
    reply = answer(replace(asked("/long 100"), max_tokens=10))
    assert (len(reply.text), reply.stop_reason, reply.usage.output_tokens) == (40, "max_tokens", 10)


def test_call_ids_differ_within_a_reply_and_between_the_steps_of_a_turn() -> None:
    first = answer(asked("/loop", tools=MATHS))
    done = Message("assistant", calls=first.calls)
    results = Message("user", results=tuple(ToolResult(made.id, "1 = 1") for made in first.calls))
    second = answer(asked("/loop", tools=MATHS, since=(done, results)))
    several = answer(asked("2+2 and 3*7", tools=MATHS))
    ids = [made.id for reply in (first, second, several) for made in reply.calls]
    assert len(ids) == 4
    assert len(set(ids)) == 4


def test_calls_at_once_are_few_however_many_are_asked_for() -> None:
    assert len(answer(asked(" and ".join(f"{n}+1" for n in range(50)), tools=MATHS)).calls) == 8


def test_calls_are_announced_by_the_stop_reason_and_nothing_else() -> None:
    reply = answer(asked("2+2", tools=MATHS))
    assert (reply.text, reply.stop_reason) == ("", "tool_use")
    assert answer(asked("hello")).stop_reason == "end_turn"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", ["", "find a", "what did I say", "time in a", "sqrt(1"])
@pytest.mark.parametrize("unit", [" ", "1+", "(1 ", "time in a and ", "now in ", "remember ", "% of ", "e "])
def test_very_long_message_is_answered_at_once(start: str, unit: str) -> None:
    for tools in (FRONT, MATHS, TIME, MEMORY):
        reply = answer(asked(start + unit * 100_000 + "x", tools=tools))
        assert reply.text or reply.calls
