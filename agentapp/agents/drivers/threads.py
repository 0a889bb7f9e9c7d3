"""Running a job on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def run_in_own_thread(run: Callable[[], object], name: str) -> Future[object]:
    """Run a job on a thread made for it. A pool is shared state: one session's hung tools could fill it."""
    job: Future[object] = Future()
    job.set_running_or_notify_cancel()

    def work() -> None:
        try:
            job.set_result(run())
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return job
