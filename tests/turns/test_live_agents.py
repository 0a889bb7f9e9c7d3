"""The agents of a turn go with it, and those that somebody keeps are found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.team import Agent, Crew, Team
from agentapp.errors import ProviderGarbled, TurnStopped
from agentapp.turns.live_agents import KEPT_SECONDS, LiveAgents
from agentapp.turns.turn import Turn
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted, hands_over, scope
from tests.support.turns import begin, someone


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveAgents:
    return LiveAgents(clock)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing goes but by the last reference to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def crew() -> Crew:
    return Team(Agent("triage", "Go.")).build(scope())


def failing(call: Any) -> Iterator[str]:
    yield "One half"
    try:
        raise ValueError("what the network said")
    except ValueError as error:
        raise ProviderGarbled("The answer broke off.") from error


def halted(turn: Turn) -> None:
    next(turn)
    turn.halt(TurnStopped())


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("ends", ["completed", "failed", "stopped"])
def test_the_agents_go_with_the_last_event_however_the_turn_ends(parts: Parts, ends: str) -> None:
    live = LiveAgents()
    model = Scripted(*{"completed": (hands_over("data"), "done"), "failed": (failing,)}.get(ends, ("so",)))
    kit = replace(parts.turns.kit, driver=ThreadedDriver(model, parts.binder), live_agents=live)
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        turn = begin(kit, uma, "hello")
        if ends == "stopped":
            halted(turn)
        result = turn.finish()
    assert result.status == ends
    assert [made.crew() for made in live._made.values()] == [None]


def test_agents_that_somebody_keeps_are_found_once(live: LiveAgents, clock: Clock) -> None:
    kept = crew()
    live.add(kept)
    live.release(kept)
    clock.now = KEPT_SECONDS
    assert live.take_left_over() == []
    clock.now += 1
    assert live.take_left_over() == [(kept.scope.request_id, kept.scope.tenant_id)]
    assert live.take_left_over() == []


@pytest.mark.usefixtures("no_collection")
def test_agents_that_nobody_keeps_are_not_left_over_while_they_wait_for_the_collector(
    live: LiveAgents, clock: Clock
) -> None:
    made: list[Any] = [crew()]
    live.add(made[0])
    live.release(made[0])
    made.append(made)
    del made
    clock.now = KEPT_SECONDS + 1
    assert live.take_left_over() == []
    assert not live._made


def test_the_agents_of_a_turn_that_goes_on_are_counted_and_never_left_over(
    live: LiveAgents, clock: Clock
) -> None:
    working = crew()
    live.add(working)
    clock.now = 1000.0
    assert (len(live), live.take_left_over()) == (1, [])
