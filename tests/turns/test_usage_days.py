"""The usage by day has each turn once, and what was charged for it where it was spent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.agents.prices import Prices
from agentapp.errors import TurnStopped
from agentapp.events import TurnResult, Usage, UsagePart
from agentapp.isolation import Scope
from agentapp.storage.usage_days import day_of, usage_rows
from agentapp.turns.values import Spent, difference
from agentapp.web.parts import Parts
from tests.support.scripted import hands_over
from tests.support.turns import begin, someone
from tests.turns.charging import answered_by, charged, lose, usage_days

names = st.sampled_from(["desk", "maths", "time"])
usages = st.builds(Usage, *[st.integers(0, 3_000)] * 3)
parts_of_turn = st.lists(
    st.builds(UsagePart, names, names, usages, st.integers(0, 99)), unique_by=lambda part: part[:2]
).map(tuple)


@pytest.fixture
def scope(parts: Parts) -> Scope:
    return someone(parts, "uma")


def told(parts: Parts, scope: Scope) -> dict[str, tuple[int, int]]:
    """Turns and model calls by agent."""
    return {row.agent: (row.turns, row.model_calls) for row in usage_days(parts, scope)}


def test_a_turn_is_counted_for_the_agent_that_answered_and_calls_where_they_were_made(
    parts: Parts, scope: Scope
) -> None:
    begin(answered_by(parts, hands_over("maths"), "42"), scope, "Six times seven?").finish()
    begin(answered_by(parts, "49"), scope, "And seven times seven?").finish()
    charged(parts, scope)
    front = parts.turns.kit.team.front.name
    assert told(parts, scope) == {front: (0, 1), "maths": (2, 2)}, "the second one began with maths"


def test_a_turn_that_was_never_answered_is_counted_too(parts: Parts, scope: Scope) -> None:
    turn = begin(answered_by(parts, "never asked"), scope, "Hello")
    turn.halt(TurnStopped())
    turn.finish()
    assert [turns for turns, _ in told(parts, scope).values()] == [1]


def test_a_turn_that_others_ended_is_counted_once_and_corrected_by_its_worker(
    parts: Parts, scope: Scope
) -> None:
    turn = begin(answered_by(parts, "Hello to you"), scope, "Hello")
    lose(parts, turn)
    before = usage_days(parts, scope)
    turn.finish()
    after = usage_days(parts, scope)
    assert sum(row.turns for row in before) == sum(row.turns for row in after) == 1
    assert [row.output_tokens for row in before] != [row.output_tokens for row in after]
    charged(parts, scope)


def test_the_day_is_the_one_on_which_the_turn_began() -> None:
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    assert day_of(midnight.timestamp() - 1, midnight) == "2026-02-28"
    assert day_of(None, midnight) == "2026-03-01"


@given(st.lists(st.tuples(names, st.sampled_from(["m", "n"]), usages), max_size=8), st.floats(0.01, 9))
def test_parts_add_up_to_the_charge(calls: list[tuple[str, str, Usage]], price: float) -> None:
    prices = Prices([("m", price, price / 3), ("n", 0.35, 0.15)])
    parts = prices.parts(calls)
    assert sum((part.usage for part in parts), Usage()) == sum((usage for *_, usage in calls), Usage())
    charge = prices.charge([(model, usage) for _, model, usage in calls])
    assert abs(sum(part.charged_microusd for part in parts) - charge) <= 1  # it is a sum in another order
    assert len({part[:2] for part in parts}) == len(parts)


@given(parts_of_turn, parts_of_turn)
def test_what_was_counted_and_the_difference_make_what_was_spent(
    parts: tuple[UsagePart, ...], counted: tuple[UsagePart, ...]
) -> None:
    both = (*counted, *difference(parts, counted))
    assert sum((part.usage for part in both), Usage()) == sum((part.usage for part in parts), Usage())
    assert sum(part.charged_microusd for part in both) == sum(part.charged_microusd for part in parts)


@given(parts_of_turn, names)
def test_exactly_one_row_of_a_turn_counts_it(parts: tuple[UsagePart, ...], agent: str) -> None:
    rows = usage_rows(TurnResult("completed", agent=agent, parts=parts))
    assert sum(turns for turns, _ in rows) == 1


@given(parts_of_turn)
def test_what_was_spent_is_read_as_it_was_written(parts: tuple[UsagePart, ...]) -> None:
    spent = Spent(Usage(1, 2, 3, 4, 5), None, 7, parts)
    assert Spent.from_json(spent.to_json()) == spent
    assert Spent.from_json(spent.to_json()[:7]).parts == ()
    assert Spent.from_json(spent.to_json()[:5]).usage == Usage(1, 2, 3)
