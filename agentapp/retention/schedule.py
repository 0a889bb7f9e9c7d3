"""The clean-up inside the server: one worker of all does it, now and then, in small pieces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Protocol

from agentapp.retention.clean_up import CleanUp, Swept, Tally

NAME = "clean-up"
AFTER_START = timedelta(minutes=5)
EVERY = timedelta(hours=1)
LONGEST = timedelta(minutes=50)  # so it has ended before the next one; what is left waits for that
LOOK_SECONDS = 60.0  # how often a worker looks whether it is due
SLICE_SECONDS = 0.05  # of one beat: nobody else of this process writes meanwhile


class DueJobs(Protocol):
    def announce(self, name: str, first_at: datetime) -> None:
        """The job is due then, unless it is known already."""

    def is_due(self, name: str, now: datetime) -> bool: ...

    def claim(self, name: str, now: datetime, next_at: datetime) -> bool:
        """In one statement: True for one caller, of all workers and machines, and then not before the next
        time.
        """


class ScheduledCleanUp:  # agentapp: shared ok - changed by the thread of its heartbeat alone
    """A job of a heartbeat of its own, which nothing else waits for."""

    name = "clean up"

    def __init__(self, clean_up: CleanUp, jobs: DueJobs, clock: Callable[[], datetime]) -> None:
        self._clean_up, self._jobs, self._clock = clean_up, jobs, clock
        self._steps: Iterator[Swept] | None = None
        self._tally, self._ends = Tally(), datetime.min.replace(tzinfo=UTC)
        self._looked: float | None = None
        self._is_announced = False

    def run(self, now: float) -> bool:
        if self._steps is None:
            if self._looked is None:
                self._looked = now  # a worker that has just started has other things to do
            if now - self._looked < LOOK_SECONDS:
                return False
            self._looked = now
            if not self._begins():
                return False
        try:
            if self._does_some():
                return True
        except BaseException:
            self._end()
            raise
        self._end()
        return False

    def _begins(self) -> bool:
        now = self._clock()
        if not self._is_announced:
            self._jobs.announce(NAME, now + AFTER_START)
            self._is_announced = True
        if not (self._jobs.is_due(NAME, now) and self._jobs.claim(NAME, now, now + EVERY)):
            return False
        self._steps, self._tally, self._ends = self._clean_up.steps(now), Tally(), now + LONGEST
        return True

    def _does_some(self) -> bool:
        """Whether there is more to do in a moment."""
        ends = time.monotonic() + SLICE_SECONDS
        for swept in self._steps or ():
            self._tally.add(swept)
            if time.monotonic() > ends:
                return self._clock() < self._ends
        return False

    def _end(self) -> None:
        self._steps = None
        self._clean_up.record(self._tally)
