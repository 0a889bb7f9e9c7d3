"""Prices: what tokens cost, and what they count as where nobody knows."""

from __future__ import annotations

import pytest

from agentapp.agents.meter import Meter
from agentapp.agents.prices import LIST_PRICES, Prices
from agentapp.events import Usage

MILLION = Usage(1_000_000, 1_000_000, 1)
DEAREST = (max(p[1] for p in LIST_PRICES), max(p[2] for p in LIST_PRICES))


def in_and_out(prices: Prices, model: str) -> tuple[float, float]:
    found = prices.of(model)
    return found.input, found.output


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("claude-sonnet-4-6", (3.0, 15.0)),
        ("claude-haiku-4-5-20251001", (1.0, 5.0)),
        ("claude-opus-4-6", (5.0, 25.0)),
        ("claude-opus-4-1-20250805", (15.0, 75.0)),
        ("claude-opus-4-20250514", (15.0, 75.0)),
    ],
)
def test_the_longest_beginning_that_fits_is_meant(model: str, price: tuple[float, float]) -> None:
    assert in_and_out(Prices(), model) == price
    assert Prices().charge([(model, MILLION)]) == sum(price) * 1_000_000


def test_the_order_in_which_prices_are_given_does_not_matter() -> None:
    given = (("m", 1.0, 1.0), ("m-big-2", 3.0, 3.0), ("m-big", 2.0, 2.0))
    for own in (given, given[::-1]):
        prices = Prices(own)
        assert [prices.of(m)[0] for m in ("m-small", "m-big", "m-big-1", "m-big-2x")] == [1, 2, 2, 3]


def test_an_operators_own_price_comes_before_the_list_price() -> None:
    prices = Prices([("claude-sonnet-4", 1.0, 2.0)])
    assert in_and_out(prices, "claude-sonnet-4-6") == (1.0, 2.0)
    assert in_and_out(prices, "claude-haiku-4-5") == (1.0, 5.0), "the others keep theirs"


def test_an_operators_shorter_beginning_does_not_hide_a_list_price_that_is_more_exact() -> None:
    prices = Prices([("claude", 0.5, 0.5)])
    assert in_and_out(prices, "claude-sonnet-4-6") == (3.0, 15.0)
    assert in_and_out(prices, "claude-of-the-future") == (0.5, 0.5)


def test_an_unknown_model_counts_as_the_dearest_and_has_no_cost_to_tell() -> None:
    """A budget that let it through for nothing would be none; a cost that is a guess is not shown."""
    prices, spent = Prices(), [("nobody-knows", MILLION)]
    assert not prices.knows("nobody-knows")
    assert prices.charge(spent) == sum(DEAREST) * 1_000_000
    assert prices.cost(spent) is None
    assert in_and_out(Prices([("cheap", 0.1, 0.1)]), "nobody-knows") == DEAREST
    assert in_and_out(Prices([("gold", 100.0, 500.0)]), "nobody-knows") == (100.0, 500.0)


def test_one_unknown_model_among_known_ones_makes_the_cost_unknown() -> None:
    prices = Prices()
    known = ("claude-sonnet-4-6", Usage(10, 5, 1))
    assert prices.cost([known]) == prices.charge([known]) == 10 * 3 + 5 * 15
    assert prices.cost([known, ("nobody-knows", Usage(1, 1, 1))]) is None
    assert prices.charge([known, ("nobody-knows", Usage(1, 1, 1))]) == 105 + sum(DEAREST)


def test_nothing_spent_costs_nothing() -> None:
    assert Prices().charge([]) == Prices().cost([]) == 0


def test_a_free_model_costs_nothing_whatever_its_name() -> None:
    prices, spent = Prices([("claude", 9.0, 9.0)], free=True), [("claude-opus-4-1", MILLION), ("x", MILLION)]
    assert prices.knows("x")
    assert (prices.charge(spent), prices.cost(spent)) == (0, 0)
    assert prices.most(["claude-opus-4-1", "x"], 10**9) == 0


def test_calls_of_several_models_are_each_charged_at_their_own_price() -> None:
    prices = Prices([("a", 1.0, 2.0), ("b", 10.0, 20.0)])
    assert prices.charge([("a", Usage(1, 1, 1)), ("b", Usage(1, 1, 1)), ("a", Usage(2, 0, 1))]) == 3 + 30 + 2


def test_fractions_of_a_millionth_are_rounded_once_at_the_end() -> None:
    prices = Prices([("a", 0.4, 0.0)])
    assert prices.charge([("a", Usage(1, 0, 1))] * 10) == 4


def test_the_most_a_turn_can_cost_is_all_its_tokens_at_the_dearest_price() -> None:
    """Out is dearer than in, and any of the agents may be the one to use them up."""
    prices = Prices([("a", 1.0, 2.0), ("b", 10.0, 5.0), ("c", 0.0, 0.25)])
    assert prices.most(["a"], 100) == 200
    assert prices.most(["a", "b"], 100) == 1_250, "the dearest may be what goes in, if it is cached too"
    assert prices.most(["a", "nobody-knows"], 100) == 100 * max(DEAREST)
    assert prices.most(["c"], 1) == 1, "rounded up: what is reserved must suffice"


@pytest.mark.parametrize(
    "usage",
    [
        Usage(0, 1000, 1),
        Usage(1000, 0, 1),
        Usage(333, 667, 1),
        Usage(1000, 0, 1, cache_write_tokens=1000),
        Usage(1000, 0, 1, cache_read_tokens=1000),
    ],
)
def test_no_turn_within_its_tokens_can_cost_more_than_the_most(usage: Usage) -> None:
    prices = Prices([("a", 1.5, 0.3), ("b", 0.1, 7.7), ("c", 1.0, 2.0, 9.0, 0.0)])
    for model in ("a", "b", "c"):
        assert prices.charge([(model, usage)]) <= prices.most([model], 1000)


@pytest.mark.parametrize("model", ["claude-sonnet-4-6", "nobody-knows"])
def test_what_is_read_from_the_cache_costs_a_tenth_and_what_is_written_a_quarter_more(model: str) -> None:
    prices, million = Prices(), 1_000_000
    of_input = prices.of(model).input
    assert prices.charge([(model, Usage(million, 0, 1, million, 0))]) == of_input * million / 10
    assert prices.charge([(model, Usage(million, 0, 1, 0, million))]) == of_input * million * 1.25
    assert prices.charge([(model, Usage(3 * million, 0, 1, million, million))]) == round(
        of_input * 2.35 * million
    )


def test_an_operators_own_prices_for_the_cache_hold() -> None:
    prices = Prices([("m", 1.0, 2.0, 0.25, 3.0)])
    assert prices.of("m-1") == (1.0, 2.0, 0.25, 3.0)
    assert prices.charge([("m", Usage(10, 1, 1, 4, 2))]) == 4 * 1 + 2 + 4 * 0.25 + 2 * 3
    assert prices.most(["m"], 10) == 30


def test_input_that_was_only_estimated_costs_what_uncached_input_does() -> None:
    assert Prices([("m", 1.0, 2.0)]).charge([("m", Meter(1_000).estimate)]) == 1_000
