"""What the model is told of a tool that failed or returned too much, with both drivers."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.agents.results import MAX_RESULT_CHARS
from tests.agents.playing import Play, asked
from tests.support.scripted import calls


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
