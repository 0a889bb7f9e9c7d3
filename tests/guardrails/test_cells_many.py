"""The cells under several real processes: nothing is lost, nobody gets in twice, kill -9 harms nobody."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from agentapp.errors import BreakerOpen
from agentapp.guardrails import Breaker, BreakerPolicy, Breakers, Key, Registry
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.cells import CellStore
from agentapp.storage.db import Database
from tests.support.rounds import ROUNDS

pytestmark = pytest.mark.timeout(240)

# Each process is forked from a server that has imported this module and opened nothing. So the processes
# share nothing, and do not take seconds to start.
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload([__name__])
PATIENCE = 200
NEVER = BreakerPolicy(failures=10**9)
ONCE = BreakerPolicy(failures=1, cooldown=3600, cooldown_max=3600, jitter=0, lease=600)


@pytest.fixture
def url(database_url: str) -> str:
    """PostgreSQL need not wait for the disk, because only the processes of the test are killed."""
    return (
        f"{database_url}&options=-csynchronous_commit%3Doff" if "postgres" in database_url else database_url
    )


class Worker:
    """What a process has of its own."""

    def __init__(self, url: str, policy: BreakerPolicy, cap: int = 1_000) -> None:
        self.binder = ThreadBinder()
        self.db = Database(url, self.binder)
        self.store = CellStore(self.db)
        self.registry: Registry[Key, Breaker] = Registry(Breakers(policy), self.store, cap=cap)

    def look(self, keys: list[Key]) -> list[Breaker]:
        with self.binder.bound(RequestScope(request_id="r")):
            return [self.registry.get(key) for key in keys]

    def tried(self, key: Key, now: float | None = None) -> bool:
        """Whether an attempt was let in."""
        try:
            self.registry.update(key, lambda breaker: breaker.admit(time.time() if now is None else now))
        except BreakerOpen:
            return False
        return True


@contextmanager
def worker(url: str, policy: BreakerPolicy, cap: int = 1_000) -> Iterator[Worker]:
    made = Worker(url, policy, cap)
    yield made
    made.db.engine.dispose()


@contextmanager
def processes(
    count: int, target: Callable[..., None], *args: Any
) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    """Each gets the end of a pipe as its last argument. None is left behind."""
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        for n in range(count):
            ours, theirs = fresh.Pipe()
            process = fresh.Process(target=target, args=(*args, n, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
        yield started
    finally:
        for process, pipe in started:
            process.kill()
            process.join(PATIENCE)
            process.close()
            pipe.close()


def told(pipe: Connection) -> Any:
    assert pipe.poll(PATIENCE), "a process did not answer"
    return pipe.recv()


def keys(count: int, name: str = "k") -> list[Key]:
    return [Key("session", f"{name}{n}") for n in range(count)]


# --- no record is lost ----------------------------------------------------------------------------


def _pairs(n: int) -> list[tuple[Key, Key]]:
    """Two of the five at a time, in either order: 250 failures."""
    five = keys(5)
    return [(five[(n + i) % 5], five[(n + i + 1 + i % 4) % 5]) for i in range(125 * ROUNDS)]


def _record_failures(url: str, n: int, pipe: Connection) -> None:
    with worker(url, NEVER) as mine:
        pipe.send("ready")
        pipe.recv()
        for two in _pairs(n):
            with mine.store.transaction() as rows:
                mine.registry.change(
                    rows, two, lambda both: [b.failed(b.generation, time.time()) for b in both]
                )
    pipe.send("done")


def test_every_failure_that_four_processes_report_is_counted(url: str) -> None:
    with processes(4, _record_failures, url) as started:
        for _, pipe in started:
            assert told(pipe) == "ready"
        for _, pipe in started:
            pipe.send("go")
        assert [told(pipe) for _, pipe in started] == ["done"] * 4
    with worker(url, NEVER) as mine:
        counted = {key: breaker.failures for key, breaker in zip(keys(5), mine.look(keys(5)), strict=True)}
    assert counted == Counter(key for n in range(4) for two in _pairs(n) for key in two)
    assert sum(counted.values()) == 1_000 * ROUNDS


# --- exactly one probe ----------------------------------------------------------------------------

MOMENTS = 40 * ROUNDS
THREADS = 10


def _half_open(url: str, policy: BreakerPolicy, wanted: list[Key]) -> None:
    """Breakers that opened a while ago, and have cooled down."""
    shut = Breaker(policy).failed(0, time.time() - 2 * policy.cooldown_max)
    with worker(url, policy) as mine, mine.store.transaction() as rows:
        rows.write([(key, json.dumps(shut.to_json()), shut.mark) for key in wanted])


def _try_all(url: str, together: Any, n: int, pipe: Connection) -> None:
    with worker(url, ONCE) as mine, ThreadPoolExecutor(THREADS) as pool:

        def try_each(_: int) -> list[Key]:
            let_in = []
            for key in keys(MOMENTS, "half"):
                together.wait(PATIENCE)
                if mine.tried(key):
                    let_in.append(key)
            return let_in

        pipe.send([key for let_in in pool.map(try_each, range(THREADS)) for key in let_in])


def test_of_twenty_who_try_at_the_same_half_open_moment_one_is_let_in_every_time(url: str) -> None:
    """Two processes with ten threads each, all at the same breaker at the same time."""
    _half_open(url, ONCE, keys(MOMENTS, "half"))
    with processes(2, _try_all, url, fresh.Barrier(2 * THREADS)) as started:
        let_in = Counter(key for _, pipe in started for key in told(pipe))
    assert let_in == Counter(keys(MOMENTS, "half"))


# --- death ----------------------------------------------------------------------------------------


def _probe_and_hang(url: str, key: Key, n: int, pipe: Connection) -> None:
    with worker(url, ONCE) as mine:
        pipe.send(mine.tried(key))
        time.sleep(PATIENCE)


def test_a_probe_whose_process_was_killed_is_free_after_the_lease_and_not_before(url: str) -> None:
    key = keys(1)[0]
    _half_open(url, ONCE, [key])
    with processes(1, _probe_and_hang, url, key) as [(process, pipe)]:
        assert told(pipe) is True
        process.kill()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
    with worker(url, ONCE) as mine:
        probed = mine.look([key])[0].probed
        assert probed is not None
        for early in (0.0, ONCE.lease / 2, ONCE.lease - 0.01):
            assert not mine.tried(key, probed + early), "another was let in beside the probe"
        assert mine.tried(key, probed + ONCE.lease), "the lost probe keeps everybody out"


def _open_and_go_on(url: str, n: int, pipe: Connection) -> None:
    mine = Worker(url, ONCE)
    for key in keys(5, f"open-{n}-"):
        mine.registry.update(key, lambda b: b.failed(b.generation, time.time()))
    pipe.send(os.getpid())
    while True:  # until it is killed, in the middle of a write
        mine.registry.update(Key("user", f"{n}"), lambda b: b.reset())


def _flood(url: str, n: int, pipe: Connection) -> None:
    """Many new sessions through a registry that remembers fifty."""
    with worker(url, ONCE, cap=50) as mine:
        before = [mine.tried(key) for key in _opened()]
        new = keys(1_000 * ROUNDS, "flood")
        for i in range(0, len(new), 4):
            with mine.store.transaction() as rows:
                mine.registry.change(rows, new[i : i + 4], lambda four: [b.reset() for b in four])
        most = len(mine.registry)
        mine.registry.clean_up()
        pipe.send((before, [mine.tried(key) for key in _opened()], most))


def _opened() -> list[Key]:
    return [key for n in range(3) for key in keys(5, f"open-{n}-")]


def test_what_is_open_stays_open_over_kill_9_a_new_process_and_a_flood_of_sessions(url: str) -> None:
    with processes(3, _open_and_go_on, url) as started:
        pids = [told(pipe) for _, pipe in started]
        time.sleep(0.3)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for process, _ in started:
            process.join(PATIENCE)
            assert process.exitcode == -signal.SIGKILL
    with processes(1, _flood, url) as [(_, pipe)]:
        before, after, most = told(pipe)
    assert before == after == [False] * 15
    assert most <= 50


def test_nothing_is_left_running() -> None:
    """The helper itself: whatever happens inside, the processes are gone afterwards."""
    pids = []
    with suppress(ZeroDivisionError), processes(2, _sleep) as started:
        pids = [told(pipe) for _, pipe in started]
        _ = 1 / 0
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _sleep(n: int, pipe: Connection) -> None:
    pipe.send(os.getpid())
    time.sleep(PATIENCE)
