"""Which processor a worker's threads run on, and which threads may run on any."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from agentapp.agents.threads import run_in_own_thread
from agentapp.server.lanes import Job, Lanes
from agentapp.server.processors import processor_of, stay_on
from agentapp.server.threads import Threads
from tests.support.server import server
from tests.support.server_users import add_people, seats

USABLE = os.sched_getaffinity(0)


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 4, 2, 7})


@pytest.mark.usefixtures("four_processors")
def test_each_processor_gets_as_many_workers_as_the_others() -> None:
    assert [processor_of(row, workers=4) for row in range(4)] == [2, 4, 7, 9]
    assert [processor_of(row, workers=8) for row in range(8)] == [2, 4, 7, 9, 2, 4, 7, 9]


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6])
def test_workers_that_cannot_be_shared_out_evenly_may_run_anywhere(workers: int) -> None:
    assert {processor_of(row, workers) for row in range(workers)} == {None}


def test_a_system_that_cannot_keep_threads_on_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processor_of(0, workers=2) is None


@pytest.fixture
def kept() -> Iterator[Threads]:
    made = Threads("kept", 1, processor=min(USABLE))
    yield made
    made.shutdown(wait=True)


def seen_by(threads: Threads) -> set[int]:
    seen: SimpleQueue[set[int]] = SimpleQueue()
    threads.run(lambda: seen.put(os.sched_getaffinity(0)))
    return seen.get(timeout=10)


def test_a_thread_stays_on_its_processor_and_others_do_not(kept: Threads) -> None:
    assert seen_by(kept) == {min(USABLE)}
    assert os.sched_getaffinity(0) == USABLE


def test_a_processor_that_is_gone_is_no_reason_not_to_work() -> None:
    thread = threading.Thread(target=lambda: stay_on(1023))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert os.sched_getaffinity(0) == USABLE


@pytest.mark.skipif(len(USABLE) < 2, reason="needs two processors")
def test_a_tool_may_use_all_processors_though_its_turn_stays_on_one(kept: Threads) -> None:
    seen: SimpleQueue[set[int]] = SimpleQueue()

    def turn() -> None:
        for anywhere in (False, True):
            job = run_in_own_thread(lambda: os.sched_getaffinity(0), "tool", on_any_processor=anywhere)
            seen.put(job.result(10))

    kept.run(turn)
    assert seen.get(timeout=10) == {min(USABLE)}
    assert seen.get(timeout=10) == USABLE


@pytest.mark.skipif(len(USABLE) < 2, reason="needs two processors")
def test_sign_ins_and_strangers_may_use_all_processors() -> None:
    """A password is hashed without the interpreter's lock: that must not take the worker's processor."""
    lanes, seen = Lanes(4, processor=min(USABLE)), SimpleQueue[set[int]]()
    job = Job(lambda: seen.put(os.sched_getaffinity(0)), lambda: None)
    for lane in (lanes.turns, lanes.pages, lanes.strangers, lanes._sign_ins):
        lane.add("somebody", job)
        lane.start()
    lanes.shutdown(wait=True)
    everywhere = sorted(len(seen.get(timeout=10)) for _ in range(4))
    assert everywhere == [1, 1, len(USABLE), len(USABLE)]


@pytest.mark.skipif(len(USABLE) < 2, reason="needs two processors")
@pytest.mark.parametrize(("chosen", "is_pinned"), [("1", True), ("0", False)])
def test_a_served_turn_is_played_on_the_workers_own_processor(
    tmp_path: Path, chosen: str, is_pinned: bool
) -> None:
    env = {"AGENTAPP_PIN_WORKERS": chosen, "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, env=env, workers=len(USABLE)) as running:
        add_people(f"sqlite:///{tmp_path}/instance/agentapp.sqlite3", ["ann"])
        (seat,) = seats(running.url, ["ann"])
        assert seat.send("hello").status == 200
        workers = running.children()
        allowed = [len(os.sched_getaffinity(thread)) for each in workers for thread in _threads_of(each)]
        of_main_loops = [len(os.sched_getaffinity(each)) for each in workers]
    assert set(of_main_loops) == {len(USABLE)}, "tools may run where the main loop may"
    assert (1 in allowed) is is_pinned


def _threads_of(worker: int) -> list[int]:
    return [int(each) for each in os.listdir(f"/proc/{worker}/task")]
