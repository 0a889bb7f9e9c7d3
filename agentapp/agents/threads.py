"""Threads for jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def run_in_own_thread(run: Callable[[], T], name: str, *, on_any_processor: bool = False) -> Future[T]:
    """Run a job on a thread made for it. A pool is shared state: one session's hung tools could fill it.

    A server may keep the threads of its requests on one processor, to run Python there. A job that may run
    ``on_any_processor`` does not take that one from them.
    """
    job: Future[T] = Future()
    job.set_running_or_notify_cancel()

    def work() -> None:
        if on_any_processor:
            _use_processors_of_main_thread()
        try:
            job.set_result(run())
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return job


def _use_processors_of_main_thread() -> None:
    """For this thread and what it starts, such as another program. A new thread is kept where the one was
    that started it.
    """
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
