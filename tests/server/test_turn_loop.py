"""The main loop's part in new turns: few begin at once, some wait, and who would wait too long is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from agentapp.server.lanes import TURNS_BEGINNING, Job, Lanes
from agentapp.server.shedding import LEAST_RETRY_SECONDS, Shedding
from agentapp.server.turn_loop import BEGINNING_SECONDS, TurnLoop
from tests.support.server_users import wait_for

THREADS, MOST_TURNS = 64, 32


class Sent(SimpleNamespace):
    """What of a connection is needed here. It can be a key, as a connection can."""

    __hash__ = object.__hash__
    user = None


class Loop(TurnLoop):
    """Without gunicorn. A turn has a thread until ``over`` is set, and never says by itself that it began."""

    def __init__(self) -> None:
        self.cfg = SimpleNamespace(threads=THREADS, is_ssl=False)
        self.tpool = Lanes(THREADS)
        self.over = threading.Event()
        self.refused: list[Any] = []
        self._shedding, self._beginning, self._busy_answers = Shedding(), {}, {}
        self.configure_turns(MOST_TURNS, lambda user: None, self._made, lambda tenant: None)

    def send(self, user: str) -> Any:
        sent = Sent(incoming=SimpleNamespace(wants_page=False))
        job = Job(self._wait, partial(self.refused.append, sent), came=1e9)
        self.add_to_lane(sent, self.tpool.turns, user, "", job)
        return sent

    def _wait(self) -> None:
        self.over.wait(30)

    def _made(self, wants_page: bool, most: int, seconds: int) -> bytes:
        return f"{most} {seconds}".encode()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.over.set()
    made.tpool.shutdown(wait=True)


def test_few_turns_begin_at_once_and_the_next_when_one_has_begun(loop: Loop) -> None:
    sent = [loop.send(f"{n}") for n in range(TURNS_BEGINNING + 3)]
    assert (loop.tpool.turns.at_work, loop.tpool.turns.waiting) == (TURNS_BEGINNING, 3)
    loop.note_begun(sent[0])
    loop.note_begun(sent[0])  # it may be told twice, or after it was passed over
    assert (loop.tpool.turns.at_work, loop.tpool.turns.waiting) == (TURNS_BEGINNING + 1, 2)
    sent[0].leave_lane()
    sent[1].leave_lane()
    assert (loop.tpool.turns.at_work, loop.tpool.turns.waiting) == (TURNS_BEGINNING, 1)


def test_turns_that_are_stuck_before_they_begin_do_not_keep_others_from_it(loop: Loop) -> None:
    stuck = [loop.send("stuck") for _ in range(TURNS_BEGINNING)]
    other = loop.send("other")
    for each in stuck:
        each.in_thread_since = 100.0
    loop._pass_over_stuck(100.0 + BEGINNING_SECONDS / 2)
    assert loop.tpool.turns.waiting == 1
    loop._pass_over_stuck(100.1 + BEGINNING_SECONDS)
    assert (loop.tpool.turns.waiting, list(loop._beginning)) == (0, [other])
    for each in stuck:
        loop.note_begun(each)
        each.leave_lane()
    assert loop.tpool.turns._beginning == 1, "each made room once"


def test_a_worker_with_as_many_turns_as_may_run_refuses_more_without_a_thread(loop: Loop) -> None:
    for n in range(MOST_TURNS):
        loop.note_begun(loop.send(f"{n}"))
    wait_for(lambda: loop.tpool.turns.at_work == MOST_TURNS)
    one_more = loop.send("one more")
    assert loop.refused == [one_more]
    most, seconds = map(int, loop.busy_answer(one_more).split())
    assert (most, seconds >= LEAST_RETRY_SECONDS) == (MOST_TURNS, True)


def test_nobody_waits_only_to_be_refused_when_it_is_their_turn(loop: Loop) -> None:
    sent = [loop.send(f"{n}") for n in range(MOST_TURNS + 5)]
    assert (loop.tpool.turns.at_work, loop.tpool.turns.waiting) == (
        TURNS_BEGINNING,
        MOST_TURNS - TURNS_BEGINNING,
    )
    assert loop.refused == sent[MOST_TURNS:]


def test_when_the_worker_is_slow_who_comes_is_refused_and_who_was_let_in_is_not(loop: Loop) -> None:
    loop._most_turns = 1_000
    sent = [loop.send(f"{n}") for n in range(200)]
    assert loop.refused == []
    loop._shedding._begun = 1.0  # nothing begins any more
    late = loop.send("late")
    assert late in loop.refused
    assert not set(loop.refused) & set(sent[:TURNS_BEGINNING]), "these are at work"
    assert loop.tpool.turns.waiting == loop._shedding.most_waiting(0.0)
