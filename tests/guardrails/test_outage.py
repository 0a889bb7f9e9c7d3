"""Whether the model is down for everybody, against a log of every turn."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentapp.guardrails.holds import Holds
from agentapp.guardrails.outage import MOST_USERS, Outage, OutagePolicy
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveHolds,
    NaiveOutage,
    Reserved,
    machine_settings,
    through_json,
)

LEASE = 160.0
USERS = st.sampled_from(["ann", "ann", "ann", "bob", "cid", "dan", "eve"])


class OutageMachine(RuleBasedStateMachine):
    """Turns begin, succeed, fail, or are never heard of again."""

    @initialize(users=st.integers(2, 4), share=st.sampled_from([0.25, 0.5, 1.0]))
    def begin(self, users: int, share: float) -> None:
        self.clock, self.policy = Clock(), OutagePolicy(users, share, 40.0)
        self.real = Outage(self.policy, Holds(LEASE))
        self.naive = NaiveOutage(users, share, 40.0, NaiveHolds(LEASE))
        self.running: list[tuple[float, Reserved]] = []

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def a_turn_begins(self) -> None:
        now = self.clock.now
        since = self.real.running.hold(0, now).start
        self.real = self.real.began(now)
        self.running.append((since, self.naive.running.take(0, now)))

    @rule(user=USERS)
    def a_turn_fails(self, user: str) -> None:
        self._ends()
        self.real = self.real.failed(user, self.clock.now)
        self.naive.told.append((self.clock.now, user))

    @rule()
    def a_turn_succeeds(self) -> None:
        self._ends()
        self.real = self.real.succeeded(self.clock.now)
        self.naive.told.append((self.clock.now, None))

    @precondition(lambda self: self.running)
    @rule()
    def a_turn_is_never_heard_of_again(self) -> None:
        self.running.pop()

    def _ends(self) -> None:
        if self.running:
            since, reserved = self.running.pop()
            self.real = self.real.ended(since, self.clock.now)
            reserved.given_back = True

    @rule()
    def it_is_written_down_and_read_again(self) -> None:
        again = Outage.from_json(self.policy, LEASE, through_json(self.real.to_json()))
        assert again == self.real
        self.real = again

    @invariant()
    def it_decides_like_the_naive_one(self) -> None:
        now = self.clock.now
        assert self.real.users_failing(now) == len(self.naive.failing(now))
        assert self.real.is_down(now) == self.naive.is_down(now)

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.real.slots) <= 12


OutageMachine.TestCase.settings = machine_settings(40, 40)
TestOutageMachine = OutageMachine.TestCase


def outage(users: int = 5, share: float = 0.5) -> Outage:
    return Outage(OutagePolicy(users, share, 30.0), Holds(LEASE))


def failing(seen: Outage, *names: str, now: float = START) -> Outage:
    for name in names:
        seen = seen.failed(name, now)
    return seen


def test_one_user_never_takes_the_model_away_however_often_it_fails() -> None:
    seen = outage()
    for n in range(5_000):
        seen = seen.failed("ann", START + n / 400)
        assert not seen.is_down(START + n / 400)


def test_one_users_failures_do_not_make_up_the_share_for_a_few_others() -> None:
    """Five of a hundred and five failed; that ann failed a thousand times changes nothing."""
    seen = outage()
    for _ in range(100):
        seen = seen.succeeded(START)
    seen = failing(seen, *["ann"] * 1_000, "bob", "cid", "dan", "eve")
    assert seen.users_failing(START) == 5
    assert not seen.is_down(START)


def test_enough_users_with_the_share_do_and_one_user_less_does_not() -> None:
    four = failing(outage(), "ann", "bob", "cid", "dan")
    assert not failing(four, *["ann", "bob"] * 50).is_down(START)
    assert failing(four, "eve").is_down(START)


@pytest.mark.parametrize(("good", "down"), [(5, True), (6, False)])
def test_the_share_is_of_all_turns(good: int, down: bool) -> None:
    seen = outage()
    for _ in range(good):
        seen = seen.succeeded(START)
    assert failing(seen, *"abcde").is_down(START) is down


def test_turns_under_way_count_as_not_failed_until_they_end_or_die() -> None:
    seen = outage()
    for _ in range(6):
        seen = seen.began(START)
    seen = failing(seen, *"abcde")
    assert not seen.is_down(START)
    since = seen.running.hold(0, START).start
    assert seen.ended(since, START).is_down(START)
    dead = failing(seen, *"abcde", now=START + LEASE * 17 / 16)
    assert dead.is_down(START + LEASE * 17 / 16)


def test_the_window_slides() -> None:
    seen = failing(outage(), "a", "b", "c", "d")
    assert failing(seen, "e", now=START + 29.9).is_down(START + 29.9)
    assert not failing(seen, "e", now=START + 33).is_down(START + 33)
    assert failing(seen, "e", now=START + 33).users_failing(START + 33) == 1


def test_names_are_bounded_however_many_fail() -> None:
    seen = outage()
    for n in range(2_000):
        seen = seen.failed(f"user-{n}", START + n / 100)
    assert seen.users_failing(START + 20) == MOST_USERS
    assert sum(len(bad) for _, _, bad in seen.slots) <= MOST_USERS + len(seen.slots)
    assert seen.is_down(START + 20)
    later = seen.failed("somebody new", START + 60)
    assert later.users_failing(START + 60) == 1


def test_those_beyond_the_names_still_count_against_the_many_who_are_still_waiting() -> None:
    """Of a thousand running turns nearly all fail: not all of their users need to be remembered by name."""
    seen, since = outage(), outage().running.hold(0, START).start
    for _ in range(1_000):
        seen = seen.began(START)
    for n in range(600):
        seen = seen.ended(since, START).failed(f"user-{n}", START)
    assert seen.is_down(START)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_moved_by_an_hour_forgets_what_was(hours: int) -> None:
    seen = failing(outage(), *"abcde")
    assert not seen.is_down(START + hours * HOUR)


def test_once_seen_to_work_the_failures_are_forgotten_and_running_turns_are_not() -> None:
    seen = failing(outage().began(START), *"abcde").cleared()
    assert seen.users_failing(START) == 0
    assert seen.running.count(START) == 1
