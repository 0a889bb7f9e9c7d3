"""The breaker against a naive one, under a clock that also jumps; and its claims one by one."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentapp.errors import BreakerOpen
from agentapp.guardrails import Breaker, BreakerPolicy, Breakers
from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveBreaker,
    Refusal,
    machine_settings,
    refusal_of,
    refused_for,
    through_json,
)

POLICIES = st.builds(
    BreakerPolicy,
    failures=st.integers(1, 4),
    cooldown=st.sampled_from([8.0, 30.0]),
    cooldown_max=st.sampled_from([30.0, 90.0, 900.0]),
    jitter=st.sampled_from([0.0, 0.1, 0.9]),
    lease=st.sampled_from([20.0, 170.0]),
    share=st.sampled_from([None, None, 0.5, 0.75]),
    window=st.just(80.0),
)
OUTCOMES = st.sampled_from(["succeeded", "failed", "failed", "abandoned"])
PLAIN = BreakerPolicy(failures=3, cooldown=30, cooldown_max=900, jitter=0, lease=170)


class BreakerMachine(RuleBasedStateMachine):
    """Every decision and every outcome is that of the naive model. Generations are kept and used late."""

    @initialize(policy=POLICIES)
    def begin(self, policy: BreakerPolicy) -> None:
        self.clock, self.policy = Clock(), policy
        self.real, self.naive = Breaker(policy), NaiveBreaker(policy)
        self.generations: list[tuple[int, int]] = []  # the real one, and the model's epoch
        self.jumped = False

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.clock.jump(hours)
        self.jumped = True

    @rule()
    def the_wait_is_waited_out(self) -> None:
        self.clock.advance(self.real.wait(self.clock.now) or 0.0)

    @rule()
    def somebody_tries(self) -> None:
        now, before = self.clock.now, self.real
        wanted = self.naive.admit(now)
        refusal = refusal_of(lambda: setattr(self, "real", before.admit(now)))
        if isinstance(wanted, int):
            assert refusal is None
            self.generations.append((self.real.generation, wanted))
        else:
            assert refusal is not None
            assert Refusal(refusal.code, refusal.limit, refusal.used) == wanted
            assert 0 < refusal.retry_after <= max(self.policy.cooldown_max, 5.0)
            assert self.real is before

    @precondition(lambda self: self.generations)
    @rule(outcome=OUTCOMES)
    def the_newest_try_ends(self, outcome: str) -> None:
        self._tell(self.generations[-1], outcome)

    @precondition(lambda self: self.generations)
    @rule(outcome=OUTCOMES, data=st.data())
    def any_try_ever_ends_perhaps_once_more(self, outcome: str, data: st.DataObject) -> None:
        self._tell(data.draw(st.sampled_from(self.generations)), outcome)

    def _tell(self, generations: tuple[int, int], outcome: str) -> None:
        now, epoch = self.clock.now, self.naive.epoch
        self.naive.tell(generations[1], now, outcome)
        self.real = getattr(self.real, outcome)(generations[0], now)
        if self.naive.mode == "open" and self.naive.epoch != epoch:
            self._learn_jitter()

    def _learn_jitter(self) -> None:
        full = self.naive.full_cooldown()
        assert full * (1 - self.policy.jitter) <= self.real.cooldown <= full <= self.policy.cooldown_max
        self.naive.cooldown = self.real.cooldown

    @rule(tries=st.integers(1, 4))
    def some_fail_in_a_row(self, tries: int) -> None:
        for _ in range(tries):
            self.somebody_tries()
            self._tell(self.generations[-1] if self.generations else (0, 0), "failed")

    @rule(outcome=OUTCOMES)
    def the_next_probe_ends(self, outcome: str) -> None:
        self.the_wait_is_waited_out()
        self.clock.advance(0.125)
        self.somebody_tries()
        self._tell(self.generations[-1] if self.generations else (0, 0), outcome)

    @rule()
    def the_next_probe_is_lost(self) -> None:
        self.the_wait_is_waited_out()
        self.clock.advance(0.125)
        self.somebody_tries()

    @rule(state=st.sampled_from(["", "", "open", "closed"]))
    def an_operator_resets_or_forces_it(self, state: Literal["", "open", "closed"]) -> None:
        self.naive.force(state) if state else self.naive.close()
        self.real = self.real.force(state) if state else self.real.reset()

    @rule()
    def it_is_written_down_and_read_again(self) -> None:
        again = Breaker.from_json(self.policy, through_json(self.real.to_json()))
        assert again == self.real
        kind = Breakers(self.policy)
        assert kind.load("any", kind.dump(self.real)) == again
        self.real = again

    @invariant()
    def it_is_in_the_models_state(self) -> None:
        naive, now = self.naive, self.clock.now
        assert (self.real.failures, self.real.trips) == (naive.row, naive.trips)
        wanted = naive.mode
        if wanted == "open" and self.real.state(now) == "half-open":
            assert self.real.wait(now) is None or naive.probe is not None
            wanted = "half-open"
        assert self.real.state(now) == wanted
        assert (self.real.wait(now) is not None) == naive.says_no(now)
        of_closed = "failing" if naive.row else ""
        marks = {"closed": of_closed, "forced-closed": "forced"}
        assert self.real.mark == marks.get(naive.mode, "open")

    @invariant()
    def unused_means_that_a_new_one_would_decide_the_same(self) -> None:
        if self.real.is_unused:
            assert self.real == Breaker(self.policy, trips=self.real.trips)

    @invariant()
    def it_never_refuses_longer_than_its_longest_cooldown_and_one_lease(self) -> None:
        if self.naive.mode != "open":
            return
        now, slack = self.clock.now, CLOCK_SKEW_SECONDS if self.jumped else 0.0
        lost = self.policy.lease if self.naive.probe is not None else 0.0
        left = refused_for(self.real, now)
        assert left <= self.policy.cooldown_max + lost + slack + 1e-3
        if self.real.state(now) == "half-open":
            assert left <= lost + slack + 1e-3


BreakerMachine.TestCase.settings = machine_settings(50, 50)
TestBreakerMachine = BreakerMachine.TestCase


def opened(policy: BreakerPolicy = PLAIN, now: float = START) -> Breaker:
    breaker = Breaker(policy)
    while breaker.opened is None:
        breaker = breaker.admit(now).failed(breaker.generation, now)
    return breaker


def probing(now: float, policy: BreakerPolicy = PLAIN) -> Breaker:
    return opened(policy, now - policy.cooldown_max).admit(now)


@pytest.mark.parametrize("limit", [1, 3, 15])
def test_it_opens_at_exactly_the_nth_failure_in_a_row(limit: int) -> None:
    breaker = Breaker(BreakerPolicy(failures=limit))
    for n in range(limit):
        assert breaker.state(START) == "closed", f"after {n} failures"
        breaker = breaker.failed(breaker.admit(START).generation, START)
    assert breaker.state(START) == "open"


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(PLAIN)
    for outcome in ("failed", "failed", "succeeded", "failed", "failed"):
        breaker = getattr(breaker, outcome)(breaker.generation, START)
    assert breaker.state(START) == "closed"
    assert breaker.failed(breaker.generation, START).state(START) == "open"


def test_an_outcome_counts_when_it_comes_however_long_the_try_took() -> None:
    """A stream is admitted, runs for ten minutes, then breaks: that is a failure at the time it breaks."""
    breaker, generation = Breaker(PLAIN), Breaker(PLAIN).admit(START).generation
    for _ in range(3):
        breaker = breaker.failed(generation, START + 600)
    assert breaker.state(START + 629) == "open", "the cool-down begins when the stream ends, not before"
    assert breaker.state(START + 630) == "half-open"


def test_a_late_success_from_before_it_opened_does_not_close_it() -> None:
    early = Breaker(PLAIN).admit(START).generation
    breaker = opened()
    assert breaker.succeeded(early, START + 1) is breaker
    half_open = breaker.admit(START + 31)
    assert half_open.succeeded(early, START + 32) is half_open


def test_a_late_failure_does_not_reopen_what_recovered() -> None:
    late = Breaker(PLAIN).admit(START).generation
    probe = opened().admit(START + 31)
    recovered = probe.succeeded(probe.generation, START + 32)
    assert recovered.state(START + 32) == "closed"
    assert recovered.failed(late, START + 33) is recovered
    assert recovered.failed(probe.generation, START + 33) is recovered


def test_a_trip_is_counted_once_however_many_are_refused_or_fail_later() -> None:
    breaker = opened()
    generation = breaker.generation
    for n in range(50):
        with pytest.raises(BreakerOpen):
            breaker.admit(START + n / 10)
        breaker = breaker.failed(generation - 1, START + n / 10).tripped(START)
    probe = breaker.admit(START + 31)
    assert probe.failed(probe.generation, START + 32).trips == 1


def test_half_open_lets_exactly_one_in_until_it_is_heard_of() -> None:
    breaker = opened().admit(START + 30)
    for later in (30, 31, 100, 199.5):
        with pytest.raises(BreakerOpen) as caught:
            breaker.admit(START + later)
        assert 0 < caught.value.retry_after <= 5
    freed = breaker.abandoned(breaker.generation, START + 40)
    assert freed.admit(START + 40).probed == START + 40


def test_the_lease_frees_a_lost_probe_and_what_it_tells_later_is_ignored() -> None:
    lost = probing(START)
    assert refused_for(lost, START) == pytest.approx(PLAIN.lease, abs=1e-3)
    second = lost.admit(START + 170)
    assert second.succeeded(lost.generation, START + 171) is second
    assert second.failed(lost.generation, START + 171) is second
    assert second.succeeded(second.generation, START + 172).state(START + 172) == "closed"


def test_the_cooldown_doubles_up_to_its_maximum() -> None:
    breaker, now, seen = opened(), START, []
    for _ in range(70):
        seen.append(breaker.cooldown)
        now += breaker.cooldown
        breaker = breaker.admit(now)
        breaker = breaker.failed(breaker.generation, now)
    assert seen == [30, 60, 120, 240, 480] + [900] * 65
    breaker = breaker.admit(now + 900)
    again = breaker.succeeded(breaker.generation, now + 901)
    for _ in range(3):
        again = again.failed(again.generation, now + 902)
    assert again.cooldown == 30, "a recovery forgets how often it was doubled"


def test_jitter_only_shortens_and_spreads() -> None:
    policy = BreakerPolicy(jitter=0.1)
    seen = [opened(policy, START + n / 8).cooldown for n in range(200)]
    assert all(27 <= cooldown <= 30 for cooldown in seen)
    assert len(set(seen)) > 190
    assert max(seen) - min(seen) > 2


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("age", [0.0, 10.0, 29.0, 899.0])
def test_a_clock_moved_by_an_hour_keeps_nobody_out_longer(hours: int, age: float) -> None:
    """In real seconds, for a breaker with a cool-down of 900 s, also while a probe is running."""
    slow = BreakerPolicy(failures=1, cooldown=900, cooldown_max=900, jitter=0, lease=170)
    cooling, now = opened(slow, START), START + age + hours * HOUR
    assert age + refused_for(cooling, now) <= 900 + CLOCK_SKEW_SECONDS + 1e-3
    probe = probing(START, slow)
    if age < slow.lease:
        assert age + refused_for(probe, now) <= slow.lease + CLOCK_SKEW_SECONDS + 1e-3


def test_clocks_that_differ_a_little_do_not_let_anybody_in_early() -> None:
    """The next worker's clock may be behind the one that opened the breaker."""
    with pytest.raises(BreakerOpen):
        opened(now=START + CLOCK_SKEW_SECONDS).admit(START)
    with pytest.raises(BreakerOpen):
        probing(START + CLOCK_SKEW_SECONDS).admit(START)


SHARE = BreakerPolicy(failures=4, share=0.5, window=80, jitter=0)


def told(outcomes: str, every: float, policy: BreakerPolicy = SHARE) -> Breaker:
    """One outcome after the other: + succeeded, - failed."""
    breaker = Breaker(policy)
    for n, outcome in enumerate(outcomes):
        tell = breaker.succeeded if outcome == "+" else breaker.failed
        breaker = tell(breaker.generation, START + n * every)
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "every", "open_"),
    [
        ("+-+-", 1, True),  # half of four
        ("+++-", 1, False),
        ("+-+", 1, False),  # too few
        ("-", 1, False),
        ("++++++++-+-+-", 1, False),
        ("++++-----", 1, True),
        ("----", 200, True),  # in a row, however slowly
        ("-+-+-+-+", 50, False),  # never four within the window
        ("++++++++-+-+-", 20, True),  # the successes have left the window
    ],
)
def test_it_opens_by_the_share_of_failures_within_the_window(
    outcomes: str, every: float, open_: bool
) -> None:
    assert (told(outcomes, every).opened is not None) is open_


def test_the_window_starts_empty_after_a_recovery() -> None:
    probe = told("+-+-", 1).admit(START + 100)
    recovered = probe.succeeded(probe.generation, START + 101)
    assert recovered.failed(recovered.generation, START + 102).state(START + 102) == "closed"


def test_the_window_stays_small_however_much_goes_through() -> None:
    assert len(told("+-++" * 2_000, 0.05, BreakerPolicy(10**6, share=0.9, window=80)).recent) <= 12


def test_forced_it_stays_so_whatever_happens() -> None:
    breaker = Breaker(PLAIN).force("open")
    for later in (0, HOUR, 365 * 24 * HOUR, -HOUR):
        with pytest.raises(BreakerOpen):
            breaker.succeeded(breaker.generation, START + later).admit(START + later)
    closed = opened().force("closed")
    for _ in range(10):
        closed = closed.admit(START).failed(closed.generation, START).tripped(START)
    assert closed.state(START) == "forced-closed"
    assert closed.reset().state(START) == "closed"
