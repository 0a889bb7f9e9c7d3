from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from agentapp.server import threads as module
from agentapp.server.deferred import Deferred
from agentapp.server.threads import Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("test", 2)
    yield made
    made.shutdown(wait=True)
    assert not len(made)


def test_an_idle_thread_works_before_another_is_started(threads: Threads) -> None:
    done: SimpleQueue[threading.Thread] = SimpleQueue()
    for _ in range(20):
        threads.run(lambda: done.put(threading.current_thread()))
        worker = done.get()
        while not threads._idle:  # it has told that it is done, and is about to be idle
            worker.join(0.001)
    assert len(threads) == 1


def test_no_more_threads_than_allowed_and_everything_is_done(threads: Threads) -> None:
    begun, go_on = SimpleQueue[int](), threading.Event()
    for number in range(5):
        threads.run(lambda number=number: (begun.put(number), go_on.wait())[0])
    first = {begun.get(), begun.get()}
    assert begun.empty()
    assert len(threads) == 2
    go_on.set()
    assert first | {begun.get() for _ in range(3)} == set(range(5))


def test_threads_that_are_idle_for_long_end(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    ran: SimpleQueue[threading.Thread] = SimpleQueue()
    threads.run(lambda: ran.put(threading.current_thread()))
    ran.get().join(10)
    assert not len(threads)
    threads.run(lambda: ran.put(threading.current_thread()))
    assert ran.get()


def test_an_idle_thread_keeps_nothing_of_what_it_did(threads: Threads) -> None:
    class Request:
        def answer(self) -> None:
            answered.set()

    answered = threading.Event()
    request = Request()
    gone = threading.Event()
    weakref.finalize(request, gone.set)
    threads.run(request.answer)
    assert answered.wait(10)
    del request
    assert gone.wait(10)


def test_what_is_deferred_wakes_the_loop_once_and_all_of_it_is_run() -> None:
    deferred, ran = Deferred(), []
    deferred.init()
    try:
        for number in range(200):
            deferred.defer(ran.append, number)
        deferred.run_callbacks()
        assert ran == list(range(200))
        deferred.defer(ran.append, 200)
        assert select.select([deferred.fileno()], [], [], 0)[0], "the loop was not woken again"
        deferred.run_callbacks()
        assert ran[-1] == 200
    finally:
        deferred.close()


def test_a_byte_that_comes_too_late_does_not_wake_the_loop_for_ever() -> None:
    deferred = Deferred()
    deferred.init()
    try:
        deferred.defer(bool)
        deferred.run_callbacks()
        os.write(deferred._write_fd, b"\0")
        deferred.run_callbacks()
        with pytest.raises(BlockingIOError):
            os.read(deferred._read_fd, 1)
    finally:
        deferred.close()
