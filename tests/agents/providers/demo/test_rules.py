"""What the demo model does with a message, in whole turns of the shipped team."""

from __future__ import annotations

import pytest

from agentapp.agents.provider import Message
from tests.agents.providers.demo.asking import play


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
