"""Which processors a worker's threads run on: most stay on one, some may run anywhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import pytest

from agentapp.agents.threads import run_in_own_thread
from agentapp.processors import Processors, new_thread, processors_of
from agentapp.server.lanes import Job, Lanes
from tests.support.server import server
from tests.support.server_users import add_people, seats

USABLE = frozenset(os.sched_getaffinity(0))
KEPT = Processors(min(USABLE), USABLE)
T = TypeVar("T")

needs_two = pytest.mark.skipif(len(USABLE) < 2, reason="needs two processors")


def here() -> set[int]:
    return os.sched_getaffinity(0)


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 4, 2, 7})


def chosen(row: int, workers: int) -> int | None:
    found = processors_of(row, workers)
    return found and found.stays_on


@pytest.mark.usefixtures("four_processors")
def test_each_processor_gets_as_many_workers_as_the_others() -> None:
    assert [chosen(row, workers=4) for row in range(4)] == [2, 4, 7, 9]
    assert [chosen(row, workers=8) for row in range(8)] == [2, 4, 7, 9, 2, 4, 7, 9]


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6])
def test_workers_that_cannot_be_shared_out_evenly_may_run_anywhere(workers: int) -> None:
    assert {chosen(row, workers) for row in range(workers)} == {None}


def test_a_system_that_cannot_keep_threads_on_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors_of(0, workers=2) is None


def in_thread(work: Callable[[], T], processors: Processors | None = KEPT, *, anywhere: bool = False) -> T:
    """What it returns when it runs in such a thread."""
    done: SimpleQueue[T] = SimpleQueue()
    thread = new_thread(lambda: done.put(work()), "test", processors, anywhere=anywhere)
    thread.start()
    thread.join(20)
    return done.get(timeout=10)


def test_a_thread_stays_on_its_processor_and_others_do_not() -> None:
    assert in_thread(here) == {KEPT.stays_on}
    assert here() == USABLE


def test_without_a_worker_a_thread_runs_where_it_likes() -> None:
    assert in_thread(here, None) == USABLE


def test_a_processor_that_is_gone_is_no_reason_not_to_work() -> None:
    assert in_thread(here, Processors(1023, frozenset({1023}))) == USABLE


@needs_two
@pytest.mark.parametrize("steps", [0, 1])
def test_a_tool_may_use_all_processors_though_its_turn_stays_on_one(steps: int) -> None:
    """Also if the turn has got a thread of its own from the request."""

    def turn(left: int = steps) -> tuple[set[int], set[int]]:
        if left:
            return run_in_own_thread(lambda: turn(left - 1), "turn").result(10)
        return here(), run_in_own_thread(here, "tool", anywhere=True).result(10)

    assert in_thread(turn) == ({KEPT.stays_on}, USABLE)


@needs_two
def test_sign_ins_and_strangers_may_use_all_processors() -> None:
    """A password is hashed without the interpreter's lock: that must not take the worker's processor."""
    seen: SimpleQueue[tuple[str, int]] = SimpleQueue()

    def worker() -> None:
        """Its main loop stays on one processor, and starts the threads of the lanes."""
        KEPT.use_one()
        lanes = Lanes(4, KEPT)
        job = Job(lambda: seen.put((threading.current_thread().name, len(here()))), lambda: None)
        for lane in (lanes.turns, lanes.pages, lanes.strangers, lanes._sign_ins):
            lane.add("somebody", job)
            lane.start()
        lanes.shutdown(wait=True)

    main_loop = threading.Thread(target=worker)
    main_loop.start()
    main_loop.join(20)
    assert dict(seen.get(timeout=10) for _ in range(4)) == {
        "agentapp-turn": 1,
        "agentapp-page": 1,
        "agentapp-stranger": len(USABLE),
        "agentapp-sign-in": len(USABLE),
    }


@needs_two
@pytest.mark.parametrize(("setting", "processors"), [("1", 1), ("0", len(USABLE))])
def test_a_served_turn_is_played_on_the_workers_own_processor(
    tmp_path: Path, setting: str, processors: int
) -> None:
    env = {"AGENTAPP_PIN_WORKERS": setting, "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, env=env, workers=len(USABLE)) as running:
        add_people(f"sqlite:///{tmp_path}/instance/agentapp.sqlite3", ["ann"])
        (seat,) = seats(running.url, ["ann"])
        assert seat.send("hello").status == 200
        of_workers = [os.sched_getaffinity(each) for each in running.children()]
        of_master = os.sched_getaffinity(running.pid)
    assert [len(each) for each in of_workers] == [processors] * len(USABLE)
    assert frozenset().union(*of_workers) == of_master == USABLE
