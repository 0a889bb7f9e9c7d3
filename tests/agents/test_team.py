"""A team and the crews that are made of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from agentapp.agents import (
    Agent,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
)
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    ForeignScope,
)
from agentapp.isolation import ThreadBinder
from tests.agents.playing import TEAM, A, double
from tests.support.scripted import Scripted, hands_over, scope


def test_one_crew_cannot_serve_a_second_request() -> None:
    crew = TEAM.build(A)
    loop = TurnLoop(scope("b"), crew, Opening("hi"), "m")
    with pytest.raises(ForeignScope):
        list(ThreadedDriver(Scripted("hello"), ThreadBinder()).run(loop, ToolContext(scope("b"))))


def test_every_build_is_fresh_and_shares_no_live_agent() -> None:
    one, two = TEAM.build(A), TEAM.build(A)
    assert one.front is not two.front
    assert not set(map(id, one.specialists)) & set(map(id, two.specialists))


def test_nothing_of_a_turn_survives_it() -> None:
    crew = TEAM.build(A)
    dead = [weakref.ref(crew), weakref.ref(crew.front), *map(weakref.ref, crew.specialists)]
    loop = TurnLoop(A, crew, Opening("hi"), "m")
    list(ThreadedDriver(Scripted(hands_over("maths"), "done"), ThreadBinder()).run(loop, ToolContext(A)))
    del crew, loop
    gc.collect()
    assert [ref() for ref in dead] == [None] * 4


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Agent("", "x"), "agent name"),
        (lambda: Agent("two words", "x"), "agent name"),
        (lambda: Agent("a", "  "), "needs instructions"),
        (lambda: Agent("a", "x", (double, double)), "there twice"),
        (lambda: Team(Agent("a", "x"), (Agent("a", "y"),)), "there twice"),
    ],
)
def test_a_team_described_wrongly_says_so(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
