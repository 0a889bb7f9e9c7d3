"""Whether the model is down for everybody, against a log of every turn."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentapp.guardrails.outage import MOST_USERS, Outage, OutagePolicy, Person
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveOutage,
    machine_settings,
    through_json,
)

PEOPLE = [Person("a", "ann"), Person("a", "bob"), Person("a", "cid"), Person("b", "dan"), Person("c", "eve")]
USERS = st.sampled_from(PEOPLE)


class OutageMachine(RuleBasedStateMachine):
    """Turns succeed and fail, and so many are running."""

    @initialize(
        users=st.integers(2, 4), share=st.sampled_from([0.25, 0.5, 1.0]), most=st.sampled_from([None, 1, 2])
    )
    def begin(self, users: int, share: float, most: int | None) -> None:
        self.clock, self.policy = Clock(), OutagePolicy(users, share, 40.0, most)
        self.real, self.naive, self.is_open = Outage(self.policy), NaiveOutage(self.policy), False

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def the_breaker_opens(self) -> None:
        self.is_open = True

    @rule(who=USERS)
    def a_turn_fails(self, who: Person) -> None:
        self.real = self.real.failed(who, self.clock.now, is_open=self.is_open)
        self.naive.note(self.clock.now, who, is_open=self.is_open)

    @rule()
    def a_turn_succeeds(self) -> None:
        if self.is_open:
            self.real, self.naive.told = self.real.cleared(), []
        self.real, self.is_open = self.real.succeeded(self.clock.now), False
        self.naive.note(self.clock.now, None)

    @rule()
    def it_is_written_down_and_read_again(self) -> None:
        again = Outage.from_json(self.policy, through_json(self.real.to_json()))
        assert again == self.real
        self.real = again

    @invariant()
    def it_decides_like_the_naive_one(self) -> None:
        now = self.clock.now
        assert self.real.users_failing(now) == self.naive.users_failing(now)
        for running in (0, 2):
            assert self.real.is_down(now, running) == self.naive.is_down(now, running)
        for seconds in (0.0, 5.0, 60.0):
            moment = now - seconds
            assert self.real.answered_since(moment, now) == self.naive.answered_since(moment, now)
        for tenant in "abc":
            assert self.real.tenant_failed(tenant) == (tenant in self.naive.tenants())
        for cooldown in (10.0, 120.0):
            failed = self.naive.without_probe(now, cooldown)
            for user in ("ann", "bob", "cid"):
                who = Person("a", user)
                assert (self.real.seconds_without_probe(who, cooldown, now) > 0) == (who in failed)

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.real.slots) <= 12 + len(PEOPLE) * self.is_open


OutageMachine.TestCase.settings = machine_settings(40, 40)
TestOutageMachine = OutageMachine.TestCase


def outage(users: int = 5, share: float = 0.5, most: int | None = None) -> Outage:
    return Outage(OutagePolicy(users, share, 30.0, most))


def person(name: str) -> Person:
    return Person("tenant", name)


def failing(seen: Outage, *names: str, now: float = START) -> Outage:
    for name in names:
        seen = seen.failed(person(name), now)
    return seen


def test_one_user_never_takes_the_model_away_however_often_it_fails() -> None:
    seen = outage()
    for n in range(5_000):
        seen = seen.failed(person("ann"), START + n / 400)
        assert not seen.is_down(START + n / 400, 0)


def test_one_users_failures_do_not_make_up_the_share_for_a_few_others() -> None:
    """Five of a hundred and five failed; that ann failed a thousand times changes nothing."""
    seen = outage()
    for _ in range(100):
        seen = seen.succeeded(START)
    seen = failing(seen, *["ann"] * 1_000, "bob", "cid", "dan", "eve")
    assert seen.users_failing(START) == 5
    assert not seen.is_down(START, 0)


def test_enough_users_with_the_share_do_and_one_user_less_does_not() -> None:
    four = failing(outage(), "ann", "bob", "cid", "dan")
    assert not failing(four, *["ann", "bob"] * 50).is_down(START, 0)
    assert failing(four, "eve").is_down(START, 0)


@pytest.mark.parametrize(("good", "down"), [(5, True), (6, False)])
def test_the_share_is_of_all_turns(good: int, down: bool) -> None:
    seen = outage()
    for _ in range(good):
        seen = seen.succeeded(START)
    assert failing(seen, *"abcde").is_down(START, 0) is down


def test_turns_under_way_count_as_not_failed() -> None:
    seen = failing(outage(), *"abcde")
    assert seen.is_down(START, running=5)
    assert not seen.is_down(START, running=6)


@pytest.mark.parametrize(("of_a", "of_b", "down"), [(8, 0, False), (8, 1, False), (3, 2, True), (2, 3, True)])
def test_one_tenant_has_no_more_than_half_of_the_votes(of_a: int, of_b: int, down: bool) -> None:
    seen = outage(most=3)
    for tenant, count in (("a", of_a), ("b", of_b)):
        for n in range(count):
            seen = seen.failed(Person(tenant, f"{tenant}{n}"), START)
    assert seen.is_down(START, 0) is down


@pytest.mark.parametrize(("most", "down"), [(3, False), (None, True)])
def test_one_tenant_does_not_make_up_the_share_for_a_few_others(most: int | None, down: bool) -> None:
    """Of 24 turns of the others two failed, and all turns of eight people of one tenant."""
    seen = outage(most=most)
    for _ in range(22):
        seen = seen.succeeded(START)
    for n in range(24):
        seen = seen.failed(Person("a", f"a{n % 8}"), START)
    for other in (Person("b", "b1"), Person("c", "c1")):
        seen = seen.failed(other, START)
    assert seen.users_failing(START) >= 5
    assert seen.is_down(START, 0) is down


@pytest.mark.parametrize("tenants", ["aabbcc", "aaabbb"])
def test_where_several_tenants_fail_alike_all_their_failures_count(tenants: str) -> None:
    seen = outage(most=3)
    for _ in range(6):
        seen = seen.succeeded(START)
    for n, tenant in enumerate(tenants):
        assert not seen.is_down(START, 0)
        seen = seen.failed(Person(tenant, str(n)), START)
    assert seen.is_down(START, 0)


def test_failures_without_a_name_are_not_those_of_another_tenant() -> None:
    """They may be all of the tenant that failed most."""
    seen = outage(most=3)
    for n in range(600):
        seen = seen.failed(Person("a", f"a{n}") if n > 1 else Person("b", f"b{n}"), START)
    assert seen.users_failing(START) == 5
    assert seen.is_down(START, running=4)
    assert not seen.is_down(START, running=5)


def test_of_who_fails_while_it_is_open_only_the_last_time_is_kept() -> None:
    """An outage may last for hours, and each attempt would be one more."""
    seen = failing(outage(), *"abcde")
    for n in range(2_000):
        seen = seen.failed(person("abcdefgh"[n % 8]), START + 10 * n, is_open=True)
    assert len(seen.slots) == 8
    assert seen.seconds_without_probe(person("h"), 0.0, START + 10 * 1_999) > 30
    assert seen.tenant_failed("tenant")


def test_what_was_answered_is_known_until_later_news() -> None:
    seen = outage().succeeded(START + 7)
    assert seen.answered_since(START + 5, START + 7), "slots are of three seconds"
    assert not seen.answered_since(START + 6, START + 7)
    assert seen.answered_since(START, START + HOUR)
    assert not seen.failed(person("ann"), START + HOUR).answered_since(START, START + HOUR)
    assert not seen.answered_since(START - 2 * HOUR, START - HOUR), "by a clock that was put back"


def test_the_window_slides() -> None:
    seen = failing(outage(), "a", "b", "c", "d")
    assert failing(seen, "e", now=START + 29.9).is_down(START + 29.9, 0)
    assert not failing(seen, "e", now=START + 33).is_down(START + 33, 0)
    assert failing(seen, "e", now=START + 33).users_failing(START + 33) == 1


def test_names_are_bounded_however_many_fail() -> None:
    seen = outage()
    for n in range(2_000):
        seen = seen.failed(person(f"user-{n}"), START + n / 100)
    assert seen.users_failing(START + 20) == MOST_USERS
    assert sum(len(bad) for _, _, bad in seen.slots) <= MOST_USERS + len(seen.slots)
    assert seen.is_down(START + 20, 0)
    later = seen.failed(person("somebody new"), START + 60)
    assert later.users_failing(START + 60) == 1


def test_those_beyond_the_names_still_count_against_the_many_who_are_still_waiting() -> None:
    """Of a thousand running turns nearly all fail: not all of their users need to be remembered by name."""
    seen = outage()
    for n in range(600):
        seen = seen.failed(person(f"user-{n}"), START)
    assert seen.is_down(START, running=400)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_moved_by_an_hour_forgets_what_was(hours: int) -> None:
    seen = failing(outage(), *"abcde")
    assert not seen.is_down(START + hours * HOUR, 0)


def test_once_seen_to_work_the_failures_are_forgotten() -> None:
    assert failing(outage(), *"abcde").cleared().users_failing(START) == 0


def test_users_without_a_tenant_in_an_older_row_are_forgotten() -> None:
    assert Outage.from_json(OutagePolicy(), {"slots": [[START, 1, {"ann": 2}]]}).users_failing(START) == 0
