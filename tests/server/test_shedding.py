"""How many turns may wait for their beginning, and when those who are refused should come back."""

from __future__ import annotations

import pytest

from agentapp.server.shedding import (
    LEAST_RETRY_SECONDS,
    LEAST_WAITING,
    MOST_RETRY_SECONDS,
    MOST_WAIT_SECONDS,
    Shedding,
)


class Worker:
    """With a queue that is never empty."""

    def __init__(self) -> None:
        self.shedding, self.now = Shedding(), 1_000.0
        self.shedding.note_waiting(100, self.now)

    def begin(self, count: int, seconds_each: float) -> None:
        for _ in range(count):
            self.now += seconds_each
            self.shedding.note_begun(self.now)

    @property
    def most(self) -> int:
        return self.shedding.most_waiting(self.now)


def test_a_fresh_worker_lets_a_large_crowd_wait_though_its_first_turns_take_long() -> None:
    worker = Worker()
    assert worker.most > 600
    worker.begin(1, seconds_each=1.0)
    worker.begin(8, seconds_each=0.02)
    assert worker.most > 500


@pytest.mark.parametrize("seconds_each", [0.005, 0.02, 0.1, 1.0])
def test_as_many_wait_as_begin_in_time_at_the_pace_that_was_measured(seconds_each: float) -> None:
    worker = Worker()
    worker.begin(int(60 / seconds_each), seconds_each)
    assert worker.most == pytest.approx(max(LEAST_WAITING, MOST_WAIT_SECONDS / seconds_each), rel=0.15)


def test_a_slow_worker_lets_fewer_wait_within_seconds_and_more_when_it_is_fast_again() -> None:
    worker = Worker()
    worker.begin(5_000, 0.005)
    before = worker.most
    worker.begin(50, 0.1)
    assert LEAST_WAITING < worker.most < before / 3
    worker.begin(2_000, 0.005)
    assert worker.most > before / 1.5


def test_a_worker_in_which_nothing_begins_any_more_lets_hardly_anybody_wait() -> None:
    worker = Worker()
    worker.now += 30
    assert worker.most < 40
    worker.now += 30
    assert worker.most == LEAST_WAITING


def test_time_in_which_nobody_waits_says_nothing_about_the_pace() -> None:
    worker = Worker()
    worker.begin(1_000, 0.02)
    worker.shedding.note_waiting(0, worker.now)
    before = worker.most
    worker.begin(100, 10.0)  # one each ten seconds, because no more come
    assert worker.most == before


def test_the_more_are_refused_the_later_and_the_wider_apart_they_come_back() -> None:
    shedding, now = Shedding(), 1_000.0
    few = [shedding.retry_after(now, random) for random in (0.0, 0.5, 1.0)]
    assert (min(few), max(few)) == (LEAST_RETRY_SECONDS, LEAST_RETRY_SECONDS + 1)
    for _ in range(500):
        shedding.retry_after(now, 0.5)
    many = [shedding.retry_after(now, random) for random in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert many == sorted(set(many)), "spread out"
    assert (many[0], many[-1]) == (LEAST_RETRY_SECONDS, LEAST_RETRY_SECONDS + 11)
    for _ in range(100_000):
        shedding.retry_after(now, 0.5)
    assert shedding.retry_after(now, 1.0) == MOST_RETRY_SECONDS
    assert shedding.retry_after(now + 3_600, 1.0) == LEAST_RETRY_SECONDS + 1, "that is long over"


def test_a_clock_that_stands_still_or_is_put_back_does_no_harm() -> None:
    worker = Worker()
    worker.shedding.note_begun(worker.now)
    worker.shedding.note_begun(worker.now - 100)
    assert worker.shedding.most_waiting(worker.now - 200) > LEAST_WAITING
    assert worker.shedding.retry_after(worker.now - 300, 0.5) >= LEAST_RETRY_SECONDS
