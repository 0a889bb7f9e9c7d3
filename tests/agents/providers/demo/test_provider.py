"""How the demo model streams its answers, and what it says they cost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.agents.provider import Message, Reply, ToolCall, ToolResult, ToolSpec
from agentapp.agents.providers.demo import AsyncDemoProvider, DemoProvider, answer
from agentapp.events import Usage
from tests.agents.providers.demo.asking import FRONT, MATHS, MEMORY, TIME, asked, unhurried


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
    assert plain.usage == Usage(-(-len("You help.hello") // 4), -(-len(plain.text) // 4), 1)
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
