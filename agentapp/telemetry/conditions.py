"""Conditions that a person has to know of. They are looked for again and again, and raised as alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from agentapp.telemetry.protocol import Telemetry

LOOK_SECONDS = 5.0
RAISED_AGAIN_SECONDS = 3600.0  # while it goes on
LATE_SECONDS = 10.0
SILENT_AFTER = timedelta(seconds=30)  # each worker reports every five
GONE_AFTER = timedelta(minutes=15)
# A lease is renewed while somebody plays its turn; soon after it has ended, somebody gives the turn up.
UNSETTLED_AFTER = timedelta(minutes=2)


class SilentWorker(NamedTuple):
    id: str
    host: str
    pid: int
    seen_at: datetime


class Condition(Protocol):
    """``kind`` is that of its alerts."""

    kind: str

    def found(self, now: datetime) -> Mapping[str, str]:
        """What is the case now: subjects of alerts, and what to tell of each."""


class FindConditions:  # agentapp: shared ok - changed by the heartbeat's thread alone
    """An alert is raised when a condition begins to hold, and once an hour while it does. So one that
    somebody has acknowledged comes back only if it is still true then.
    """

    name = "find what a person has to know of"

    def __init__(
        self, telemetry: Telemetry, conditions: Sequence[Condition], clock: Callable[[], datetime]
    ) -> None:
        self._telemetry, self._conditions, self._clock = telemetry, tuple(conditions), clock
        self._raised: dict[tuple[Condition, str], float] = {}

    def run(self, now: float) -> bool:
        for condition in self._conditions:
            found = condition.found(self._clock())
            for known in [key for key in self._raised if key[0] is condition and key[1] not in found]:
                del self._raised[known]
            for subject, detail in found.items():
                if now - self._raised.get((condition, subject), float("-inf")) >= RAISED_AGAIN_SECONDS:
                    self._raised[condition, subject] = now
                    self._telemetry.alert(condition.kind, detail, subject=subject)
        return False


class ScoreBelowOne:
    """A violation raises this alert itself. Its worker may die before that is stored; the counts stay."""

    kind = "isolation-score"

    def __init__(self, score: Callable[[], float | None]) -> None:
        self._score = score

    def found(self, now: datetime) -> Mapping[str, str]:
        score = self._score()
        if score is None or score >= 1:
            return {}
        return {"": f"The isolation score of the last hour is {score:.6f}."}


class LateThreads:
    """A background thread of this worker that was late since this was looked at last, or is."""

    kind = "heartbeat-late"

    def __init__(self, worker: Callable[[], str], lateness: Callable[[], Mapping[str, float]]) -> None:
        self._worker, self._lateness = worker, lateness

    def found(self, now: datetime) -> Mapping[str, str]:
        late = [
            f"The thread {name} of this worker was {seconds:.0f} s late."
            for name, seconds in self._lateness().items()
            if seconds > LATE_SECONDS
        ]
        return {f"worker:{self._worker()}": " ".join(late)} if late else {}


class WorkerRows(Protocol):
    def silent_since(self, moment: datetime) -> Sequence[SilentWorker]: ...
    def remove(self, worker: str) -> None: ...


class SilentWorkers:
    """Another worker whose heartbeat hangs altogether reports nothing any more. One whose process has ended
    is only forgotten; of one on another machine nobody can know which of the two it is.
    """

    kind = "heartbeat-late"

    def __init__(self, rows: WorkerRows, lives: Callable[[str], bool | None]) -> None:
        self._rows, self._lives = rows, lives

    def found(self, now: datetime) -> Mapping[str, str]:
        silent = {}
        for worker in self._rows.silent_since(now - SILENT_AFTER):
            lives, age = self._lives(worker.id), now - worker.seen_at
            if lives is False or (lives is None and age > GONE_AFTER):
                self._rows.remove(worker.id)
            else:
                since = f"{worker.seen_at:%Y-%m-%d %H:%M:%S} UTC"
                silent[f"worker:{worker.id}"] = (
                    f"Process {worker.pid} on {worker.host} has reported nothing since {since}: "
                    "it hangs, or has lost its database or its machine."
                )
        return silent


class WrongClock:
    """``problem`` says what is wrong with the clock of this host, if anything is."""

    kind = "clock-wrong"

    def __init__(self, host: str, problem: Callable[[], str | None]) -> None:
        self._host, self._problem = host, problem

    def found(self, now: datetime) -> Mapping[str, str]:
        problem = self._problem()
        return {f"host:{self._host}": f"On {self._host}, {problem}."} if problem else {}


class RunningTurns(Protocol):
    def unsettled(self, before: datetime) -> tuple[int, datetime | None]: ...


class UnsettledReservations:
    """Turns that nobody plays and nobody gives up: what they have reserved keeps others of their user out."""

    kind = "unsettled-reservations"

    def __init__(self, running: RunningTurns) -> None:
        self._running = running

    def found(self, now: datetime) -> Mapping[str, str]:
        count, first = self._running.unsettled(now - UNSETTLED_AFTER)
        if first is None:
            return {}
        since = f"{first:%Y-%m-%d %H:%M:%S} UTC"
        return {"": f"Turns that nobody plays or settles: {count}. The lease of the first ended {since}."}
