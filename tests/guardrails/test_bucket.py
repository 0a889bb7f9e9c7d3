"""The rate limit against an exact log of everything it let through."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentapp.errors import RateLimited
from agentapp.guardrails import Bucket, Rate
from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveBucket,
    Refusal,
    machine_settings,
    refusal_of,
    through_json,
)

# Those with a width that no float holds exactly, too.
RATES = st.builds(Rate, st.integers(1, 6), st.sampled_from([60.0, 7.5, 10.0, 900.0]))
ROUNDING = 1e-6


def longest(rate: Rate) -> float:
    return rate.seconds * (1 + 1 / 60)


class BucketMachine(RuleBasedStateMachine):
    """Time passes at any pace, and the clock never goes back."""

    @initialize(rate=RATES)
    def begin(self, rate: Rate) -> None:
        self.clock, self.rate, self.bucket = Clock(), rate, Bucket(rate)
        self.log: list[float] = []

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(part=st.floats(0, 1.1))
    def part_of_a_period_passes(self, part: float) -> None:
        self.clock.advance(self.rate.seconds * part)

    @rule(tries=st.integers(1, 8))
    def some_try(self, tries: int) -> None:
        for _ in range(tries):
            refusal = refusal_of(self._take)
            if refusal is None:
                self.log.append(self.clock.now)
                self._check_let_in()
            else:
                assert isinstance(refusal, RateLimited)
                self._check_refused(refusal)

    def _take(self) -> None:
        self.bucket = self.bucket.take(self.clock.now)

    def _check_let_in(self) -> None:
        now = self.clock.now
        within = [hit for hit in self.log if now - hit <= self.rate.seconds - ROUNDING]
        assert len(within) <= self.rate.count, "too many within one period"

    def _check_refused(self, refusal: RateLimited) -> None:
        now, wait = self.clock.now, refusal.retry_after
        within = [hit for hit in self.log if now - hit < longest(self.rate) + ROUNDING]
        assert len(within) >= self.rate.count, "refused without need"
        assert (refusal.limit, refusal.seconds) == (self.rate.count, self.rate.seconds)
        assert refusal.used == self.rate.count == self.bucket.used(now)
        assert 0 < wait <= longest(self.rate) + ROUNDING
        assert refusal_of(lambda: self.bucket.take(now + wait + ROUNDING)) is None
        if wait > 0.01:
            assert refusal_of(lambda: self.bucket.take(now + wait - 0.01)) is not None

    @rule()
    def it_is_written_down_and_read_again(self) -> None:
        again = Bucket.from_json(self.rate, through_json(self.bucket.to_json()))
        assert again == self.bucket
        self.bucket = again

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.bucket.slots) <= 62


BucketMachine.TestCase.settings = machine_settings(40, 40)
TestBucketMachine = BucketMachine.TestCase


class JumpingBucketMachine(RuleBasedStateMachine):
    """The clock jumps by an hour, forward or back, any number of times."""

    @initialize(rate=RATES)
    def begin(self, rate: Rate) -> None:
        self.clock, self.rate, self.bucket = Clock(), rate, Bucket(rate)

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(hours=st.sampled_from([-1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.clock.jump(hours)

    @rule(tries=st.integers(1, 8))
    def some_try(self, tries: int) -> None:
        for _ in range(tries):
            refusal_of(lambda: setattr(self, "bucket", self.bucket.take(self.clock.now)))

    @invariant()
    def it_lets_somebody_in_within_one_period(self) -> None:
        now = self.clock.now
        refusal = refusal_of(lambda: self.bucket.take(now))
        if refusal is not None:
            assert 0 < refusal.retry_after <= longest(self.rate) + CLOCK_SKEW_SECONDS + ROUNDING
            assert refusal_of(lambda: self.bucket.take(now + refusal.retry_after + ROUNDING)) is None


JumpingBucketMachine.TestCase.settings = machine_settings(30, 30)
TestJumpingBucketMachine = JumpingBucketMachine.TestCase


def filled(rate: Rate, now: float) -> Bucket:
    bucket = Bucket(rate)
    for _ in range(rate.count):
        bucket = bucket.take(now)
    return bucket


def test_the_nth_passes_and_the_one_after_does_not() -> None:
    bucket = filled(Rate(20, 60), START)
    with pytest.raises(RateLimited) as caught:
        bucket.take(START + 59.9)
    assert (caught.value.limit, caught.value.used, caught.value.seconds) == (20, 20, 60)
    assert bucket.take(START + 61).used(START + 61) == 1


def test_a_refusal_is_no_hit() -> None:
    """Asking again, however often, does not make the wait longer."""
    bucket = filled(Rate(2, 60), START)
    waits = []
    for knock in range(100):
        refusal = refusal_of(lambda knock=knock: bucket.take(START + knock / 4))
        assert refusal is not None
        waits.append(knock / 4 + refusal.retry_after)
    assert waits == [pytest.approx(61)] * 100


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_moved_by_an_hour_lets_go_within_a_period(hours: int) -> None:
    for seconds in (60.0, 900.0, 4 * HOUR):
        rate = Rate(3, seconds)
        refusal = refusal_of(lambda rate=rate: filled(rate, START).take(START + 1 + hours * HOUR))
        assert refusal is None or refusal.retry_after <= longest(rate)


def test_off_never_refuses_and_keeps_nothing() -> None:
    bucket = Bucket(None)
    for n in range(1_000):
        bucket = bucket.take(START + n / 1_000)
    assert bucket == Bucket(None)
    assert bucket.used(START + 1) == 0
    assert Bucket.from_json(None, through_json(bucket.to_json())) == bucket


def test_turned_off_and_on_again_it_still_knows() -> None:
    """The setting may change between two starts; what went through stays known."""
    kept = filled(Rate(3, 60), START).to_json()
    Bucket.from_json(None, kept).take(START)
    with pytest.raises(RateLimited):
        Bucket.from_json(Rate(2, 60), kept).take(START)
    assert Bucket.from_json(Rate(4, 60), kept).take(START).used(START) == 4


def test_it_stays_small_when_the_clocks_of_two_workers_differ() -> None:
    """One is a second and a half behind the other, and they take turns."""
    bucket = Bucket(Rate(5_000, 60))
    for n in range(4_000):
        bucket = bucket.take(START + n / 100 - 1.5 * (n % 2))
    assert bucket.used(START + 40) == 4_000
    assert len(bucket.slots) <= 64


def test_it_counts_like_the_naive_one() -> None:
    naive, bucket = NaiveBucket(5, 60.0), Bucket(Rate(5, 60))
    for n in range(400):
        now = START + n * 4.375
        wanted = naive.refuses(now)
        refusal = refusal_of(lambda now=now, bucket=bucket: bucket.take(now))
        assert wanted == (refusal and Refusal(refusal.code, refusal.limit, refusal.used))
        if wanted is None:
            naive.hits.append(now)
            bucket = bucket.take(now)
