"""The heartbeat: the background threads of a worker. Each runs a list of named jobs, again and again."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentapp.errors import DiskFull, StorageUnavailable
from agentapp.isolation import Binder, RequestScope, new_id
from agentapp.logs import described
from agentapp.telemetry import Telemetry

TICK_SECONDS = 0.25  # while there is work: a stop that came to another worker is noticed within that time
IDLE_SECONDS = 2.0  # while there is none; and how often the slow jobs run. After a failure, half of it
# After a beat that took long, the next one waits for so many times as long: with many turns at work it takes
# long because everything does, and must not slow them down more.
REST = 4

log = logging.getLogger(__name__)


class Job(Protocol):
    name: str

    def run(self, now: float) -> bool:
        """Do what is due. Whether there will be more to do in a moment."""


@runtime_checkable
class EndingJob(Job, Protocol):
    def end(self) -> None:
        """The worker ends: do now what cannot be left to another one."""


@dataclass(slots=True)
class ScheduledJob:
    """``every`` is the least number of seconds between two runs; 0 is at each beat."""

    job: Job
    every: float = 0.0
    last_run: float = float("-inf")


class Heartbeat:  # agentapp: shared ok - changed by its own thread alone, and once before that starts
    """One thread. The jobs run in the order of the list, each with a scope of its own, so that each gives
    back its connection.

    If one fails, the rest of that beat is skipped: mostly the database is away, and the others would
    only wait for it too. ``on_failure`` is told. ``on_lag`` is told after each beat how late that ended.
    """

    def __init__(
        self,
        name: str,
        jobs: Sequence[ScheduledJob],
        binder: Binder,
        telemetry: Telemetry,
        on_failure: Callable[[], None],
        on_lag: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.name, self.jobs = name, tuple(jobs)
        self._binder, self._telemetry = binder, telemetry
        self._on_failure, self._on_lag = on_failure, on_lag
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._wake, self._closing = threading.Event(), threading.Event()
        self._woken_at = 0.0
        self._is_away = False  # the database, and it is in the log
        self.lag = 0.0  # how late the last beat has ended, in seconds
        self._worst_lag = 0.0  # since somebody asked
        self._due: float | None = None  # when the beat that is under way should have begun

    def wake(self) -> None:
        """There is something to do: start the thread if there is none (after a fork there is none), and do
        not let it sleep.
        """
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._closing.clear()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name=f"agentapp-{self.name}", daemon=True)
                self._thread.start()
        if not self._wake.is_set():
            self._woken_at = time.monotonic()
            self._wake.set()

    def close(self) -> None:
        """End the thread. Turns that still run are then kept alive by nobody, until their lease runs out."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._closing.set()
        self._wake.set()
        if thread is not None and self._pid == os.getpid():
            thread.join()
            self._end_jobs()

    def lateness(self) -> float:
        """By how many seconds it was late at worst since this was asked last, or is late now."""
        now = time.monotonic()
        with self._lock:
            worst, self._worst_lag = self._worst_lag, 0.0
        due = self._due
        return max(worst, 0.0 if due is None else now - due)

    def beat(self, due: float | None = None) -> bool:
        """Run every job that is due. Whether there will be more to do in a moment. ``due`` is when this beat
        should have begun.
        """
        now = time.monotonic()
        busy = False
        for scheduled in self.jobs:
            if now - scheduled.last_run >= scheduled.every:
                scheduled.last_run = now
                busy = self._run_job(scheduled.job, now) or busy
        lag = time.monotonic() - (now if due is None else due)
        with self._lock:
            self.lag, self._worst_lag = lag, max(self._worst_lag, lag)
        self._telemetry.gauge("heartbeat_lag_seconds", lag, thread=self.name)
        self._on_lag(lag)
        return busy

    def _run_job(self, job: Job, now: float) -> bool:
        with self._binder.bound(RequestScope(request_id=f"heartbeat-{new_id()}")):
            try:
                return job.run(now)
            except Exception as error:
                error.add_note(f"in the heartbeat's job: {job.name}")
                self._tell(error, job.name)
                raise

    def _end_jobs(self) -> None:
        for scheduled in self.jobs:
            if isinstance(scheduled.job, EndingJob):
                with self._binder.bound(RequestScope(request_id=f"heartbeat-{new_id()}")):
                    try:
                        scheduled.job.end()
                    except Exception as error:
                        log.warning("heartbeat: at the end of %s: %s", scheduled.job.name, described(error))

    def _tell(self, error: Exception, job: str | None = None) -> None:
        if not isinstance(error, StorageUnavailable):
            log.error("heartbeat: unexpected error: %s", described(error), extra={"job": job})
            return
        # Told once: it will be tried again and again. A full disk is in the log already.
        if not self._is_away and not isinstance(error, DiskFull):
            why = str(error.__cause__ or error).partition("\n")[0]
            log.warning("heartbeat: %s", why, extra={"job": job})
        self._is_away = True

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.is_set():
            self._wake.clear()
            self._due = due
            began, busy, has_failed = time.monotonic(), False, False
            try:
                busy = self.beat(due)
                self._is_away = False
            except Exception as error:
                has_failed = True
                self._on_failure()
                if not hasattr(error, "__notes__"):  # not of a job, which has told it
                    self._tell(error)
            self._due = None
            due = self._rest(busy, time.monotonic() - began, has_failed=has_failed)

    def _rest(self, busy: bool, took: float, *, has_failed: bool = False) -> float:
        """Wait for the next beat, after one that ``took`` so many seconds. When that one should begin."""
        ended, idle = time.monotonic(), IDLE_SECONDS
        if has_failed:  # when the database is back, others wait for what this worker has to store
            idle /= 2
        if busy:
            pause = min(max(TICK_SECONDS, REST * took), max(TICK_SECONDS, IDLE_SECONDS))
            self._closing.wait(pause)
            return ended + pause
        if self._wake.wait(idle):
            return max(ended, self._woken_at)
        return ended + idle


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """All that beats in a worker."""

    threads: tuple[Heartbeat, ...]

    @property
    def jobs(self) -> tuple[ScheduledJob, ...]:
        return tuple(scheduled for thread in self.threads for scheduled in thread.jobs)

    def lateness(self) -> Mapping[str, float]:
        """See `Heartbeat.lateness`, by the names of the threads."""
        return {thread.name: thread.lateness() for thread in self.threads}

    def wake(self) -> None:
        for thread in self.threads:
            thread.wake()

    def close(self) -> None:
        for thread in self.threads:
            thread.close()
