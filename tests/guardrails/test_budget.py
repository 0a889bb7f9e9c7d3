"""Budgets, reservations and bulkheads against exact logs, over days and months and moved clocks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentapp.errors import BudgetExhausted, Busy
from agentapp.guardrails import Allowance, Budget
from agentapp.guardrails.budget import seconds_left
from agentapp.guardrails.bulkhead import Bulkhead
from agentapp.guardrails.holds import Hold, Holds
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveBudget,
    NaiveHolds,
    Refusal,
    Reserved,
    machine_settings,
    refusal_of,
    through_json,
)

LEASE = 160.0
FORGOTTEN = LEASE * (1 + 1 / 16)
PERIODS = st.sampled_from(["ever", "day", "month"])
HOURS = st.sampled_from([0.25, 1.5, 5.0, 23.0, 24.0, 49.0, 31 * 24.0]).map(lambda hours: hours * HOUR)


class BudgetMachine(RuleBasedStateMachine):
    """Time goes on. Turns reserve, then settle, give back, or are never heard of again; some spend more
    than they reserved, and some settle long after they were given up.
    """

    @initialize(
        limit=st.one_of(st.none(), st.integers(1, 1_000)), period=PERIODS, concurrent=st.integers(1, 4)
    )
    def begin(self, limit: int | None, period: str, concurrent: int) -> None:
        self.clock = Clock()
        self.allowance = Allowance(limit, period)  # type: ignore[arg-type]
        self.budget = Budget(self.allowance, Holds(LEASE))
        self.naive = NaiveBudget(limit, period, NaiveHolds(LEASE))
        self.bulkhead, self.naive_bulkhead = Bulkhead(concurrent, Holds(LEASE)), NaiveHolds(LEASE)
        self.turns: list[tuple[Hold, Reserved, Reserved]] = []
        self.charged: list[
            tuple[float, int]
        ] = []  # what may turn out to be wrong: when it was spent, how much

    @rule(seconds=st.one_of(STEPS, HOURS))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(amount=st.integers(0, 400))
    def a_turn_begins(self, amount: int) -> None:
        now = self.clock.now
        wanted, left = self.naive.refuses(now), self.naive.left(now)
        full = len(self.naive_bulkhead.alive(now)) >= (self.bulkhead.limit or 0)
        refusal = refusal_of(lambda: self.budget.fits(amount, now))
        assert wanted == (refusal and Refusal(refusal.code, refusal.limit, refusal.used))
        busy = refusal_of(lambda: self.bulkhead.enter(now))
        assert full == isinstance(busy, Busy)
        if refusal is None and busy is None:
            hold = self.budget.fits(amount, now)
            assert hold.amount == min(amount, left), "all of it, or what is left"
            self.budget, self.bulkhead = self.budget.reserve(hold, now), self.bulkhead.enter(now)
            made = self.naive.holds.take(hold.amount, now), self.naive_bulkhead.take(0, now)
            self.turns.append((hold, *made))

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), spent=st.one_of(st.none(), st.integers(0, 600)))
    def a_turn_ends(self, data: st.DataObject, spent: int | None) -> None:
        """With what it really spent, or with nothing at all."""
        hold, money, place = self._any_turn(data)
        now = self.clock.now
        if spent is None:
            self.budget = self.budget.give_back(hold, now)
        else:
            self.budget = self.budget.settle(hold, spent, now, money.since)
            self.naive.spent.append((money.since, spent))
            self.charged.append((money.since, spent))
        self.bulkhead = self.bulkhead.leave(hold.start, now)
        money.given_back = place.given_back = True

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def a_turn_is_never_heard_of_again(self, data: st.DataObject) -> None:
        self._any_turn(data)

    def _any_turn(self, data: st.DataObject) -> tuple[Hold, Reserved, Reserved]:
        return self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1)))

    @rule(amount=st.integers(0, 100))
    def something_is_charged(self, amount: int) -> None:
        self.budget = self.budget.charge(amount, self.clock.now)
        self.naive.spent.append((self.clock.now, amount))

    @precondition(lambda self: self.charged)
    @rule(data=st.data(), truth=st.integers(0, 600))
    def what_was_charged_is_corrected(self, data: st.DataObject, truth: int) -> None:
        """Up or down, perhaps in another month."""
        when, amount = self.charged.pop(data.draw(st.integers(0, len(self.charged) - 1)))
        self.budget = self.budget.charge(truth - amount, self.clock.now, when)
        self.naive.spent.append((when, truth - amount))

    @rule()
    def it_is_written_down_and_read_again(self) -> None:
        again = Budget.from_json(self.allowance, LEASE, through_json(self.budget.to_json()))
        assert again == self.budget
        holds = Holds.from_json(LEASE, through_json(self.bulkhead.holds.to_json()))
        assert holds == self.bulkhead.holds
        self.budget = again

    @invariant()
    def it_knows_exactly_what_was_spent_and_reserved(self) -> None:
        now = self.clock.now
        assert self.budget.used(now) == self.naive.used(now)
        assert self.budget.holds.amount(now) == self.naive.held(now)
        assert self.budget.holds.count(now) == len(self.naive.holds.alive(now))
        assert (
            self.bulkhead.holds.count(now)
            == len(self.naive_bulkhead.alive(now))
            <= (self.bulkhead.limit or 0)
        )

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.budget.holds.slots) <= 18
        assert len(self.budget.spent) <= 3

    @invariant()
    def one_lease_after_the_last_death_nothing_is_reserved(self) -> None:
        later = self.clock.now + FORGOTTEN
        assert (self.budget.holds.amount(later), self.bulkhead.holds.count(later)) == (0, 0)

    def teardown(self) -> None:
        if not hasattr(self, "turns"):
            return
        now = self.clock.now
        living = {id(money) for _, money, _ in self.turns}  # two may have taken the same at once
        dead = [one for one in self.naive.holds.alive(now) if id(one) not in living]
        for hold, _, _ in self.turns:
            self.budget, self.bulkhead = (
                self.budget.give_back(hold, now),
                self.bulkhead.leave(hold.start, now),
            )
        assert self.budget.holds.count(now) == len(dead), "all that is left is what the dead took"


BudgetMachine.TestCase.settings = machine_settings(50, 40)
TestBudgetMachine = BudgetMachine.TestCase


class HonestTurnsMachine(RuleBasedStateMachine):
    """Every turn spends at most what it reserved, and settles within its lease if at all."""

    @initialize(limit=st.integers(1, 300), period=PERIODS)
    def begin(self, limit: int, period: str) -> None:
        self.clock = Clock()
        self.budget = Budget(Allowance(limit, period), Holds(LEASE))  # type: ignore[arg-type]
        self.turns: list[tuple[float, Hold]] = []

    @rule(seconds=st.one_of(STEPS, HOURS))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(amount=st.integers(1, 120))
    def a_turn_begins(self, amount: int) -> None:
        now = self.clock.now
        if refusal_of(lambda: self.budget.fits(amount, now)) is None:
            hold = self.budget.fits(amount, now)
            self.budget = self.budget.reserve(hold, now)
            self.turns.append((now, hold))

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), part=st.floats(0, 1))
    def a_turn_ends(self, data: st.DataObject, part: float) -> None:
        began, hold = self.turns.pop(data.draw(st.integers(0, len(self.turns) - 1)))
        if self.clock.now - began <= LEASE:
            self.budget = self.budget.settle(hold, int(hold.amount * part), self.clock.now)

    @invariant()
    def never_more_is_spent_and_reserved_than_the_limit(self) -> None:
        left = self.budget.left(self.clock.now)
        assert left is not None
        assert left >= 0


HonestTurnsMachine.TestCase.settings = machine_settings(25, 40)
TestHonestTurnsMachine = HonestTurnsMachine.TestCase


class MovedClockMachine(RuleBasedStateMachine):
    """The clock is moved by an hour, either way, often over midnight."""

    @initialize(period=PERIODS)
    def begin(self, period: str) -> None:
        self.clock = Clock()
        self.budget = Budget(Allowance(10**9, period), Holds(LEASE))  # type: ignore[arg-type]
        self.naive = NaiveBudget(10**9, period, NaiveHolds(LEASE))
        self.open: list[Hold] = []

    @rule(hours=st.sampled_from([0.25, 0.75, 1.25, 12.0, 22.0, 24.0]))
    def hours_pass(self, hours: float) -> None:
        self.clock.advance(hours * HOUR)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.clock.jump(hours)

    @rule(amount=st.integers(1, 100))
    def a_turn_begins(self, amount: int) -> None:
        hold = self.budget.fits(amount, self.clock.now)
        self.budget = self.budget.reserve(hold, self.clock.now)
        self.open.append(hold)

    @rule(amount=st.integers(1, 100))
    def a_turn_ends(self, amount: int) -> None:
        hold = self.open.pop() if self.open else None
        settled = self.budget.give_back(hold, self.clock.now) if hold else self.budget
        self.budget = settled.charge(amount, self.clock.now)
        self.naive.spent.append((self.clock.now, amount))

    @invariant()
    def each_period_has_exactly_what_was_spent_in_it(self) -> None:
        assert self.budget.used(self.clock.now) == self.naive.used(self.clock.now)

    @invariant()
    def nothing_is_reserved_longer_than_the_lease(self) -> None:
        now = self.clock.now
        assert 0 <= self.budget.holds.amount(now) <= sum(hold.amount for hold in self.open)
        assert self.budget.holds.amount(now + FORGOTTEN + 2.0) == 0


MovedClockMachine.TestCase.settings = machine_settings(50, 40)
TestMovedClockMachine = MovedClockMachine.TestCase


def budget(limit: int | None, period: str = "ever") -> Budget:
    return Budget(Allowance(limit, period), Holds(LEASE))  # type: ignore[arg-type]


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_what_fits_is_what_is_left_if_that_is_less() -> None:
    spent = budget(100).charge(70, START)
    assert spent.fits(20, START).amount == 20
    assert spent.fits(50, START).amount == 30
    last = spent.reserve(spent.fits(50, START), START)
    with pytest.raises(BudgetExhausted) as caught:
        last.fits(1, START)
    assert (caught.value.limit, caught.value.used) == (100, 70)
    assert 0 < caught.value.retry_after < 60, "what is merely reserved comes back soon"


@pytest.mark.parametrize(
    ("period", "wait"), [("day", 1.5 * HOUR), ("month", 1.5 * HOUR), ("ever", 24 * HOUR)]
)
def test_what_is_used_up_comes_back_with_the_next_period(period: str, wait: float) -> None:
    with pytest.raises(BudgetExhausted) as caught:
        budget(100, period).charge(100, START).fits(1, START)
    assert caught.value.retry_after == wait
    again = refusal_of(lambda: budget(100, period).charge(100, START).fits(1, START + wait))
    assert (again is None) == (period != "ever")


def test_without_a_limit_nothing_is_refused_and_all_is_counted() -> None:
    free = budget(None, "day").charge(10**12, START)
    assert free.fits(10**12, START).amount == 10**12
    assert free.used(START) == 10**12
    assert free.left(START) is None


@pytest.mark.parametrize(
    ("period", "now", "left"),
    [
        ("day", "2026-02-28 23:59:59", 1),
        ("month", "2026-02-28 23:59:59", 1),
        ("month", "2026-12-31 00:00:00", 86_400),
        ("month", "2028-02-01 00:00:00", 29 * 86_400),
        ("day", "2026-03-29 00:00:00", 86_400),  # a day has 24 hours here, summer time or not
        ("ever", "2026-03-29 00:00:00", None),
    ],
)
def test_the_seconds_left_are_those_of_the_utc_calendar(period: str, now: str, left: float | None) -> None:
    assert seconds_left(period, at(now)) == left  # type: ignore[arg-type]


def test_a_clock_put_back_over_midnight_finds_both_days_again() -> None:
    evening, morning = at("2026-05-04 23:50"), at("2026-05-05 00:10")
    spent = budget(100, "day").charge(10, evening).charge(5, morning)
    assert (spent.used(evening), spent.used(morning)) == (10, 5)
    back = spent.charge(1, evening)
    assert (back.used(evening), back.used(morning)) == (11, 5)


def test_the_day_before_is_found_again_after_two_clocks_put_back() -> None:
    """The clock shows day 2, then 1, then 3, then 2 again: what day 2 cost is still known."""
    days = ["2026-05-05 00:10", "2026-05-04 23:50", "2026-05-06 00:10"]
    spent = budget(100, "day")
    for day in days:
        spent = spent.charge(7, at(day))
    assert spent.used(at("2026-05-05 23:50")) == 7


@pytest.mark.parametrize("period", ["day", "month"])
def test_a_correction_counts_for_the_period_in_which_it_was_charged(period: str) -> None:
    evening, morning = at("2026-04-30 23:59"), at("2026-05-01 00:01")
    spent = budget(1_000, period).charge(300, evening).charge(50, morning)
    less = spent.charge(-200, morning, evening)
    assert (less.used(evening), less.used(morning)) == (100, 50)
    more = less.charge(7, morning, evening)
    assert (more.used(evening), more.used(morning)) == (107, 50)


def test_what_is_charged_for_days_long_past_does_not_make_it_forget_today() -> None:
    today = at("2026-05-20 12:00")
    spent = budget(1_000, "day").charge(40, today)
    for day in range(1, 10):
        spent = spent.charge(5, today, at(f"2026-05-{day:02} 12:00"))
    assert spent.used(today) == 40
    assert len(spent.spent) == 3


def test_concurrent_reservations_never_exceed_the_limit() -> None:
    taken, amounts = budget(1_000), []
    for _ in range(4):
        hold = taken.fits(300, START)
        taken = taken.reserve(hold, START)
        amounts.append(hold.amount)
    assert amounts == [300, 300, 300, 100]
    with pytest.raises(BudgetExhausted):
        taken.fits(1, START)


def test_a_late_settlement_gives_nothing_back_that_others_hold() -> None:
    """The slot of the lost turn is forgotten; another turn's reservation must stay."""
    lost = budget(100).fits(60, START)
    held = budget(100).reserve(lost, START)
    later = START + FORGOTTEN
    other = held.fits(80, later)
    both = held.reserve(other, later).settle(lost, 10, later)
    assert both.holds.amount(later) == other.amount
    assert both.used(later) == 10


def test_what_is_given_back_under_a_moved_clock_never_makes_up_for_others() -> None:
    """The reservation is given back while the clock is an hour behind: its slot then lies in the future."""
    held = budget(100).reserve(budget(100).fits(60, START), START)
    hold = held.holds.hold(60, START)
    back = held.give_back(hold, START - HOUR)
    assert [back.holds.amount(at) for at in (START - HOUR, START, START + 1)] == [0, 0, 0]
    other = back.reserve(back.fits(80, START), START)
    assert (other.holds.count(START), other.holds.amount(START)) == (1, 80)


def test_no_more_than_its_room_are_in_at_once_and_the_dead_leave() -> None:
    bulkhead = Bulkhead(3, Holds(LEASE))
    for _ in range(3):
        bulkhead = bulkhead.enter(START)
    with pytest.raises(Busy) as caught:
        bulkhead.enter(START + LEASE - 1)
    assert (caught.value.limit, caught.value.used) == (3, 3)
    assert caught.value.retry_after > 0
    assert bulkhead.enter(START + FORGOTTEN).holds.count(START + FORGOTTEN) == 1
    since = bulkhead.holds.hold(0, START).start
    assert bulkhead.leave(since, START + 1).enter(START + 1).holds.count(START + 1) == 3


def test_room_without_a_limit_counts_all_the_same() -> None:
    bulkhead = Bulkhead(None, Holds(LEASE))
    for _ in range(500):
        bulkhead = bulkhead.enter(START)
    assert bulkhead.holds.count(START) == 500
    assert len(bulkhead.holds.slots) == 1
