"""The heartbeat: the one background thread of a worker. It runs a list of named jobs, again and again."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentapp.errors import DiskFull, StorageUnavailable
from agentapp.isolation import Binder, RequestScope, new_id
from agentapp.logs import described
from agentapp.telemetry import Telemetry

TICK_SECONDS = 0.25  # while there is work: a stop that came to another worker is noticed within that time
IDLE_SECONDS = 2.0  # while there is none; and how often the slow jobs run

log = logging.getLogger(__name__)


class Job(Protocol):
    name: str

    def run(self, now: float) -> bool:
        """Do what is due. Whether there will be more to do in a moment."""


@dataclass(slots=True)
class ScheduledJob:
    """``every`` is the least number of seconds between two runs; 0 is at each beat."""

    job: Job
    every: float = 0.0
    last_run: float = float("-inf")


class Heartbeat:  # agentapp: shared ok - changed by its own thread alone, and once before that starts
    """The jobs run in the order of the list, each with a scope of its own, so that each gives back its
    connection.

    If one fails, the rest of that beat is skipped: mostly the database is away, and the others would
    only wait for it too. ``on_failure`` is told.
    """

    def __init__(
        self,
        jobs: Sequence[ScheduledJob],
        binder: Binder,
        telemetry: Telemetry,
        on_failure: Callable[[], None],
    ) -> None:
        self.jobs = tuple(jobs)
        self._binder, self._telemetry, self._on_failure = binder, telemetry, on_failure
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._wake, self._closing = threading.Event(), threading.Event()

    def wake(self) -> None:
        """There is something to do: start the thread if there is none (after a fork there is none), and do
        not let it sleep.
        """
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._closing.clear()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="agentapp-heartbeat", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread. Turns that still run are then kept alive by nobody, until their lease runs out."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._closing.set()
        self._wake.set()
        if thread is not None and self._pid == os.getpid():
            thread.join()

    def beat(self) -> bool:
        """Run every job that is due. Whether there will be more to do in a moment."""
        now = time.monotonic()
        busy = False
        for scheduled in self.jobs:
            if now - scheduled.last_run >= scheduled.every:
                scheduled.last_run = now
                busy = self._run_job(scheduled.job, now) or busy
        self._telemetry.observe("heartbeat_lag_seconds", time.monotonic() - now)
        return busy

    def _run_job(self, job: Job, now: float) -> bool:
        with self._binder.bound(RequestScope(request_id=f"heartbeat-{new_id()}")):
            try:
                return job.run(now)
            except Exception as error:
                error.add_note(f"in the heartbeat's job: {job.name}")
                raise

    def _run(self) -> None:
        is_away = False
        while not self._closing.is_set():
            self._wake.clear()
            busy = False
            try:
                busy = self.beat()
                is_away = False
            except StorageUnavailable as error:
                self._on_failure()
                # Told once: it will be tried again and again. A full disk is in the log already.
                if not is_away and not isinstance(error, DiskFull):
                    log.warning("heartbeat: %s", str(error.__cause__ or error).partition("\n")[0])
                is_away = True
            except Exception as error:
                self._on_failure()
                where = "".join(getattr(error, "__notes__", ())[-1:])
                log.error("heartbeat: unexpected error %s: %s", where, described(error))
            if busy:
                self._closing.wait(TICK_SECONDS)
            else:
                self._wake.wait(IDLE_SECONDS)
