"""Which specialist and which tool of other teams the demo model finds."""

from __future__ import annotations

import pytest

from agentapp.agents.shipped import maths, team
from agentapp.agents.team import Agent, Team
from agentapp.agents.tool import tool
from tests.agents.providers.demo.asking import Played, play


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
