"""Threads for jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_own_thread(run: Callable[[], T], name: str) -> Future[T]:
    """Run a job on a thread made for it. A pool is shared state: one session's hung tools could fill it."""
    job: Future[T] = Future()
    job.set_running_or_notify_cancel()

    def work() -> None:
        try:
            job.set_result(run())
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return job
