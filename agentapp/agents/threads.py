"""Threads for jobs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from agentapp.processors import new_thread

T = TypeVar("T")


def run_in_own_thread(run: Callable[[], T], name: str, *, anywhere: bool = False) -> Future[T]:
    """Run a job on a thread made for it. A pool is shared state: one session's hung tools could fill it.

    One that may run ``anywhere`` does not take the processor of its worker from the other threads.
    """
    job: Future[T] = Future()
    job.set_running_or_notify_cancel()

    def work() -> None:
        try:
            job.set_result(run())
        except BaseException as error:
            job.set_exception(error)

    new_thread(work, name, anywhere=anywhere).start()
    return job
