"""What a turn may use: steps, tokens and money, with both drivers."""

from __future__ import annotations

from typing import Any

from agentapp.agents import (
    Agent,
    Limits,
    Team,
)
from agentapp.agents.prices import Prices
from agentapp.errors import (
    OutOfSteps,
    OutOfTokens,
    ProviderBusy,
)
from agentapp.events import Usage
from tests.agents.playing import Play, asked
from tests.support.scripted import calls, hands_over


def test_a_turn_is_bounded_by_steps(play: Play) -> None:
    again = [calls(("double", {"number": 1}))] * 4
    turn = play(*again, limits=Limits(steps=4))
    assert isinstance(turn.error, OutOfSteps)
    assert turn.loop.usage.model_calls == 4


def test_a_turn_is_bounded_by_tokens_and_each_call_by_what_is_left(play: Play) -> None:
    model: list[Any] = []
    again = [calls(("double", {"number": 1}))] * 9
    turn = play(*again, limits=Limits(tokens=40, reply_tokens=1000), model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert [call.max_tokens for call in asked(model)] == [40, 25, 10]


CHEAP = Prices([("some-model", 1.0, 2.0), ("dear-model", 1.0, 10.0)])  # millionths of a dollar for a token


def test_a_turn_is_bounded_by_money_and_each_call_by_what_can_still_be_paid(play: Play) -> None:
    """Each call costs 10 tokens in at 1 and 5 out at 2: that is 20."""
    model: list[Any] = []
    again = [calls(("double", {"number": 1}))] * 9
    turn = play(*again, limits=Limits(microusd=70, reply_tokens=30), prices=CHEAP, model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert (turn.error.code, turn.error.blame) == ("budget-exhausted", "nobody")
    assert [call.max_tokens for call in asked(model)] == [30, 25, 15, 5]
    assert turn.loop.usage.model_calls == 4, "the call that cannot be paid is not made"


def test_a_call_that_cannot_be_paid_at_all_is_not_even_the_first(play: Play) -> None:
    model: list[Any] = []
    turn = play("never said", limits=Limits(microusd=1), prices=CHEAP, model=model)
    assert isinstance(turn.error, OutOfTokens)
    assert asked(model) == []
    assert turn.loop.usage == Usage()


def test_what_can_be_paid_goes_by_the_model_of_the_agent_who_asks(play: Play) -> None:
    model: list[Any] = []
    team = Team(Agent("front", "Go."), (Agent("other", "Go on.", model="dear-model"),))
    limits = Limits(microusd=200)
    play(hands_over("other"), "done", team=team, limits=limits, prices=CHEAP, model=model)
    assert [(call.model, call.max_tokens) for call in asked(model)] == [
        ("some-model", 100),
        ("dear-model", 18),
    ]


def test_of_tokens_and_money_the_one_that_is_less_bounds_a_call(play: Play) -> None:
    for limits, most in ((Limits(tokens=40, microusd=60), 30), (Limits(tokens=20, microusd=60), 20)):
        model: list[Any] = []
        play("ok", limits=limits, prices=CHEAP, model=model)
        assert [call.max_tokens for call in asked(model)] == [most]


def test_failed_calls_are_paid_too(play: Play) -> None:
    model: list[Any] = []
    failed = ProviderBusy("overloaded", usage=Usage(60, 0, 1))
    play(hands_over("maths"), failed, "ok", limits=Limits(microusd=100), prices=CHEAP, model=model)
    assert [call.max_tokens for call in asked(model)] == [50, 40, 10]


def test_a_model_of_unknown_price_is_held_to_money_as_the_dearest_and_a_free_one_not_at_all(
    play: Play,
) -> None:
    model: list[Any] = []
    play("ok", limits=Limits(microusd=750), prices=Prices(), model=model)
    play("ok", limits=Limits(microusd=0), prices=Prices(free=True), model=model)
    play("ok", limits=Limits(microusd=None), prices=Prices(), model=model)
    assert [provider.asked[0].max_tokens for provider in model] == [10, 8_192, 8_192]
