"""Breakers in memory only: many threads at once, none of them waiting, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentapp.errors import BreakerOpen
from agentapp.guardrails import Breaker, BreakerPolicy, LocalBreakers
from tests.support.guardrail_models import START, STEPS, Clock, machine_settings, refusal_of

ONCE = BreakerPolicy(failures=1, cooldown=30, jitter=0)


def at_once(count: int, job: Callable[[int], Any]) -> list[Any]:
    """The job in so many threads, which all begin together."""
    ready = threading.Barrier(count)

    def run(n: int) -> Any:
        ready.wait(30)
        return job(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_of_many_who_try_at_once_one_probes() -> None:
    clock = Clock()
    for _ in range(50):
        breakers: LocalBreakers[str] = LocalBreakers(ONCE, clock=lambda: clock.now)
        breakers.failed("key", breakers.admit("key"))
        clock.advance(30)
        refusals = at_once(16, lambda n, b=breakers: refusal_of(lambda: b.admit("key")))
        assert [refusal is None for refusal in refusals].count(True) == 1


def test_no_lock_is_held_inside_the_block() -> None:
    """Sixty-four threads wait for each other inside the block, with one key. A lock would stop them all."""
    breakers: LocalBreakers[str] = LocalBreakers(ONCE)
    all_in = threading.Barrier(64)

    def call(n: int) -> int:
        with breakers.guarded("key"):
            return all_in.wait(30)

    assert sorted(at_once(64, call)) == list(range(64))
    assert len(breakers) == 0, "nothing happened that has to be remembered"


def test_no_lock_is_held_inside_the_block_while_it_fails_all_over() -> None:
    breakers: LocalBreakers[str] = LocalBreakers(BreakerPolicy(failures=100))
    breakers.failed("key", breakers.admit("key"))
    all_in = threading.Barrier(64)

    def call(n: int) -> None:
        with suppress(ValueError), breakers.guarded("key"):
            all_in.wait(30)
            raise ValueError

    at_once(64, call)
    assert breakers.get("key").failures == 65


def test_no_failure_is_lost() -> None:
    breakers: LocalBreakers[int] = LocalBreakers(BreakerPolicy(failures=10**9), cap=2)

    def fail(n: int) -> None:
        for i in range(1_000):
            breakers.failed(i % 4, 0)

    at_once(8, fail)
    assert [breakers.get(key).failures for key in range(4)] == [2_000] * 4


def test_an_exception_counts_if_it_is_of_those_that_do() -> None:
    clock = Clock()
    breakers: LocalBreakers[str] = LocalBreakers(ONCE, clock=lambda: clock.now)
    with pytest.raises(KeyError), breakers.guarded("key", counts=OSError):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), breakers.guarded("key"):
        raise KeyboardInterrupt
    assert breakers.get("key").state(clock.now) == "closed"
    with pytest.raises(TimeoutError), breakers.guarded("key", counts=(OSError, ValueError)):
        raise TimeoutError
    with pytest.raises(BreakerOpen), breakers.guarded("key"):
        pytest.fail("it was let in")


def test_a_probe_that_was_interrupted_frees_its_place() -> None:
    clock = Clock()
    breakers: LocalBreakers[str] = LocalBreakers(ONCE, clock=lambda: clock.now)
    breakers.failed("key", breakers.admit("key"))
    clock.advance(30)
    with suppress(KeyboardInterrupt), breakers.guarded("key"):
        assert refusal_of(lambda: breakers.admit("key")) is not None
        raise KeyboardInterrupt
    with breakers.guarded("key"):
        pass
    assert breakers.get("key").state(clock.now) == "closed"


KEYS = st.integers(0, 7)


class LocalMachine(RuleBasedStateMachine):
    """Against one plain breaker for each key, none of which is ever dropped."""

    @initialize(share=st.sampled_from([None, 0.5]), failures=st.integers(1, 3))
    def begin(self, share: float | None, failures: int) -> None:
        self.clock = Clock()
        policy = BreakerPolicy(failures, cooldown=30, share=share, window=80)
        self.local: LocalBreakers[int] = LocalBreakers(policy, cap=2, clock=lambda: self.clock.now)
        self.plain = {key: Breaker(policy) for key in range(8)}
        self.generations: list[tuple[int, int, int]] = []

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(key=KEYS)
    def somebody_tries(self, key: int) -> None:
        given: list[int] = []
        refusal = refusal_of(lambda: given.append(self.local.admit(key)))
        before = self.plain[key]
        wanted = refusal_of(lambda: self.plain.update({key: before.admit(self.clock.now)}))
        assert (refusal is None) == (wanted is None)
        if given:
            self.generations.append((key, given[0], self.plain[key].generation))

    @precondition(lambda self: self.generations)
    @rule(data=st.data(), outcome=st.sampled_from(["succeeded", "succeeded", "failed", "abandoned"]))
    def a_try_ends(self, data: st.DataObject, outcome: str) -> None:
        key, local, plain = data.draw(st.sampled_from(self.generations[-6:]))
        getattr(self.local, outcome)(key, local)
        self.plain[key] = getattr(self.plain[key], outcome)(plain, self.clock.now)

    @rule(key=KEYS)
    def somebody_resets_it(self, key: int) -> None:
        self.local.update(key, Breaker.reset)
        self.plain[key] = self.plain[key].reset()

    @invariant()
    def every_key_decides_the_same(self) -> None:
        for key, plain in self.plain.items():
            assert self.local.get(key) == plain


LocalMachine.TestCase.settings = machine_settings(40, 40)
TestLocalMachine = LocalMachine.TestCase


def test_an_open_breaker_is_kept_however_many_keys_come_after_it() -> None:
    breakers: LocalBreakers[int] = LocalBreakers(ONCE, cap=10, clock=lambda: START)
    breakers.failed(-1, breakers.admit(-1))
    for key in range(5_000):
        with breakers.guarded(key):
            pass
    assert refusal_of(lambda: breakers.admit(-1)) is not None
    assert len(breakers) <= 10


def test_those_with_nothing_to_tell_any_more_are_dropped() -> None:
    breakers: LocalBreakers[int] = LocalBreakers(BreakerPolicy(failures=2), cap=10, clock=lambda: START)
    for key in range(5_000):
        breakers.failed(key, breakers.admit(key))
        breakers.succeeded(key, breakers.admit(key))
        assert len(breakers) <= 10
