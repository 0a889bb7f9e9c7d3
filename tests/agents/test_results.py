"""What the model is told of a tool that failed or returned too much, with both drivers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from agentapp.agents import Agent, Team, tool
from agentapp.agents.results import MAX_RESULT_CHARS
from agentapp.agents.tool import ToolInputError
from tests.agents.playing import Play, asked
from tests.support.scripted import calls

MARK = "the-private-words-of-ann"


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("crash", {}, "crash failed: it raised RuntimeError"),
        ("exits", {}, "exits failed: it raised SystemExit"),
        ("unshowable", {}, "unshowable failed: the tool returned a object"),
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
    assert result.content[-1] not in ": ", "the reason is there, in whatever words"
    assert "secret" not in result.content


def test_a_tool_that_returns_too_much_is_cut(play: Play) -> None:
    model: list[Any] = []
    play(calls(("huge", {})), "long", model=model)
    content = asked(model)[1].messages[-1].results[0].content
    assert len(content) < MAX_RESULT_CHARS + 100
    assert "60,000 characters in all" in content


class Inner(BaseModel):
    amount: int


@tool
def buy(text: str, times: int, detail: Inner | None = None) -> str:
    """Refuses in all the ways a tool can."""
    try:
        raise KeyError(text)
    except KeyError as error:
        if times == 1:
            raise ToolInputError(f"{text} is not for sale") from error
        if times == 2:
            error.add_note(text)
            raise ValueError(text) from ToolInputError(text)
        if times == 3:
            raise ExceptionGroup(text, [ValueError(text)]) from None
        raise OSError(2, text, text) from None


@tool
async def buy_later(text: str) -> str:
    """Refuses in an event loop."""
    raise LookupError(text)


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("buy", {"text": MARK, "times": MARK}, "ToolInputError"),
        ("buy", {MARK: MARK, "text": "x", "times": 1}, "ToolInputError"),
        ("buy", {"text": MARK, "times": 1, "detail": {"amount": MARK}}, "ToolInputError"),
        ("buy", {"text": [MARK], "times": 1}, "ToolInputError"),
        ("buy", MARK, "ToolInputError"),
        ("buy", {"text": MARK, "times": 1}, "ToolInputError"),
        ("buy", {"text": MARK, "times": 2}, "ValueError"),
        ("buy", {"text": MARK, "times": 3}, "ExceptionGroup"),
        ("buy", {"text": MARK, "times": 4}, "FileNotFoundError"),
        ("buy_later", {"text": MARK}, "LookupError"),
    ],
)
def test_of_a_tool_that_fails_the_log_has_the_name_the_kind_and_the_place(
    play: Play, name: str, given: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    turn = play(calls((name, given)), "never mind", team=Team(Agent("shop", "Sell.", tools=(buy, buy_later))))
    assert turn.text == "never mind"
    (record,) = [record for record in caplog.records if record.name == "agentapp.agents.results"]
    assert f"tool {name} raised {kind} at " in record.getMessage()
    assert vars(record)["request_id"] == turn.loop.scope.request_id
    assert ".py:" in record.getMessage()
    assert MARK not in caplog.text
    assert MARK not in repr([vars(record) for record in caplog.records])
