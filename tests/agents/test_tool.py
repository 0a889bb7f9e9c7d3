"""Tools: how they are described, and what becomes of what they return or raise."""

from __future__ import annotations

import pytest

from agentapp.agents import (
    Agent,
    tool,
)
from agentapp.agents.tool import ToolContext


@pytest.mark.parametrize("limit", [{"per_turn": 0}, {"per_session": 0}, {"per_turn": -1}])
def test_a_tool_that_may_never_be_called_is_a_mistake(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="should not be given to an agent"):
        tool(**limit)  # type: ignore[call-overload]


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
