"""What is stored with a turn and in a cell: rows of older and newer versions of the code can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from agentapp.events import TurnResult
from agentapp.guardrails import Allowance, BreakerPolicy, Cell, CellPolicy, Cells, Key, Rate
from agentapp.guardrails.admission import MaxCost, Reservation, TurnCells, admit, settle
from agentapp.guardrails.outage import Person
from tests.support.guardrail_models import START, through_json

RESERVATION = Reservation(
    at=1_800_000_000,
    tokens=50_000,
    user_microusd=150_000,
    tenant_microusd=149_000,
    session_generation=3,
    user_generation=2,
    provider_generation=1,
    tenant_generation=4,
    first_call_tokens=200,
    first_call_microusd=600,
    begun=1_800_000_004.5,
)
ANN = Person("t", "ann")
POLICY = CellPolicy(BreakerPolicy(failures=2), Rate(7, 60), Allowance(100, "day"), concurrent=3)
KEY = Key("user", "ann")
CELLS = Cells(dict.fromkeys(("session", "user", "tenant", "provider"), POLICY))


# --- a reservation, in the row of its turn --------------------------------------------------------


def test_a_reservation_is_stored_by_the_names_of_its_fields() -> None:
    assert RESERVATION.to_json() == {
        "at": 1_800_000_000,
        "tokens": 50_000,
        "user_microusd": 150_000,
        "tenant_microusd": 149_000,
        "session_generation": 3,
        "user_generation": 2,
        "provider_generation": 1,
        "tenant_generation": 4,
        "first_call_tokens": 200,
        "first_call_microusd": 600,
        "first_call_agent": "",
        "first_call_model": "",
        "begun": 1_800_000_004.5,
    }
    assert Reservation.from_json(through_json(RESERVATION.to_json())) == RESERVATION


def test_a_reservation_of_an_older_row_is_a_list_and_can_still_be_read() -> None:
    older = replace(RESERVATION, tenant_generation=-1, first_call_tokens=0, first_call_microusd=0, begun=None)
    assert Reservation.from_json([1_800_000_000, 50_000, 150_000, 149_000, 3, 2, 1]) == older


def test_a_field_that_this_version_does_not_know_is_ignored() -> None:
    assert Reservation.from_json({**RESERVATION.to_json(), "stored_bytes": 4_096}) == RESERVATION


@pytest.mark.parametrize("missing", [field.name for field in fields(Reservation)])
def test_without_one_field_the_others_are_given_back_and_nothing_is_given_back_twice(missing: str) -> None:
    """What the missing field was for stays reserved until its lease is over, and no longer."""
    fresh = TurnCells(*(CELLS.fresh(Key(scope, "1")) for scope in ("session", "user", "tenant", "provider")))
    one, first = admit(fresh, ANN, MaxCost(30, 30), START)
    two, _ = admit(one, ANN, MaxCost(40, 40), START)
    state = first.to_json()
    del state[missing]
    after = settle(two, Reservation.from_json(state), ANN, TurnResult("interrupted"), START)
    budgets = [cell.budget.holds.amount(START) for cell in after[:3]]
    kept = {"at": [70, 70, 70], "tokens": [70, 40, 40], "user_microusd": [40, 70, 40]}
    assert budgets == kept.get(missing, [40, 40, 70] if missing == "tenant_microusd" else [40, 40, 40])
    later = START + POLICY.lease * 17 / 16
    assert [cell.budget.holds.amount(later) for cell in after[:3]] == [0, 0, 0]
    assert [cell.breaker for cell in after] == [cell.breaker for cell in two]


# --- a cell, in its row ---------------------------------------------------------------------------

CHANGED: dict[str, Callable[[Cell], Cell]] = {
    "breaker": lambda cell: replace(cell, breaker=cell.breaker.failed(0, START).failed(0, START)),
    "bucket": lambda cell: replace(cell, bucket=cell.bucket.take(START)),
    "budget": lambda cell: replace(cell, budget=cell.budget.charge(7, START)),
    "bulkhead": lambda cell: replace(cell, bulkhead=cell.bulkhead.enter(START)),
    "outage": lambda cell: replace(cell, outage=cell.outage.failed(ANN, START)),
    "tools": lambda cell: replace(cell, tools=cell.tools_after((("clock", 2),))),
    "limits": lambda cell: CELLS.with_limits(KEY, cell, (("rate", (5, 900.0)), ("concurrent", None))),
}


def test_the_test_below_knows_every_field_of_a_cell() -> None:
    assert list(CHANGED) == [field.name for field in fields(Cell)]


@pytest.mark.parametrize("name", CHANGED)
def test_every_field_of_a_cell_is_stored(name: str) -> None:
    cell = CHANGED[name](CELLS.fresh(KEY))
    assert cell != CELLS.fresh(KEY)
    assert CELLS.load(KEY, CELLS.dump(cell)) == cell


def test_the_names_in_stored_cells_are_the_ones_they_always_were() -> None:
    cell = CELLS.fresh(KEY)
    for change in CHANGED.values():
        cell = change(cell)
    state = json.loads(CELLS.dump(cell))
    assert list(state) == ["breaker", "bucket", "budget", "room", "outage", "tools", "limits"]
    assert list(state["breaker"]) == ["token", "failures", "opened", "cooldown", "trips"]
    assert (list(state["budget"]), list(state["outage"])) == (["spent"], ["slots"])


def test_the_limits_in_a_row_are_those_of_the_cell_and_the_others_those_of_the_settings() -> None:
    cell = CELLS.load(KEY, '{"limits":{"budget":9,"rate":[5,900],"a newer one":3}}')
    assert (cell.budget.allowance, cell.bucket.rate) == (Allowance(9, "day"), Rate(5, 900))
    assert (cell.bulkhead.limit, cell.breaker.policy) == (POLICY.concurrent, POLICY.breaker)
    off = CELLS.load(KEY, '{"limits":{"budget":null,"concurrent":null}}')
    assert (off.budget.allowance.limit, off.bulkhead.limit, off.bucket.rate) == (None, None, POLICY.rate)
    assert CELLS.dump(cell) == '{"limits":{"budget":9,"rate":[5,900],"a newer one":3}}', "nothing is lost"


def test_a_cell_with_changed_limits_is_never_unused_however_calm_it_is() -> None:
    cell = CELLS.load(KEY, '{"limits":{"budget":9}}')
    assert (CELLS.mark(cell), CELLS.is_unused(cell)) == ("limits", False)
    assert CELLS.mark(replace(cell, breaker=cell.breaker.force("open"))) == "open"
    assert CELLS.mark(CELLS.with_limits(KEY, cell, ())) == ""


def test_a_cell_of_an_older_row_is_read_as_it_was() -> None:
    text = (
        '{"breaker":{"token":4,"failures":2,"opened":1800000000.5,"cooldown":28.5,"reopened":1,"trips":3},'
        '"bucket":[[1800000000,2]],"budget":{"spent":{"2027-01-15":7},"holds":[[1800000000,1,30]]},'
        '"room":[[1800000000,1,0]],"outage":{"slots":[[1800000000,1,{"t":{"ann":2}}]]},"tools":{"clock":2}}'
    )
    cell, now = CELLS.load(KEY, text), 1_800_000_001.0
    assert (cell.breaker.generation, cell.breaker.failures, cell.breaker.trips) == (4, 2, 3)
    assert cell.bulkhead.holds.count(now) == 1
    assert (cell.budget.used(now), cell.budget.holds.amount(now)) == (7, 30)
    assert CELLS.dump(cell) == text
