"""The database's clock. Everything goes by it that several hosts compare: theirs may differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

# By so many seconds a second a clock runs wrong at most, also while NTP corrects it.
MOST_DRIFT = 0.0005
MOST_APART_SECONDS = 1.0  # a host's clock and the database's
ASK = "SELECT extract(epoch FROM clock_timestamp())::float8"
CLOCK = "clock"  # its place in the `info` of an SQLAlchemy session

Execute = Callable[[str], Any]  # a statement; gives the driver's cursor


class Asked(Protocol):
    def run_text(self, text: str, parameters: Any = ()) -> Any: ...


class Reading(NamedTuple):
    """By how many seconds the database's clock was ahead of this host's steady clock when that said ``at``.
    It may be by ``error`` more or less.
    """

    ahead: float
    error: float
    at: float

    def narrowed_by(self, newer: Reading) -> Reading:
        """What the two tell together. So one that took long spoils nothing. If they contradict each other,
        one of the clocks was set, and the older reading is of no use.
        """
        error = self.error + MOST_DRIFT * (newer.at - self.at)
        low = max(self.ahead - error, newer.ahead - newer.error)
        high = min(self.ahead + error, newer.ahead + newer.error)
        return Reading((low + high) / 2, (high - low) / 2, newer.at) if low <= high else newer


def steady() -> float:
    """Seconds of a clock that nobody sets, and that no suspended machine stops, if there is such a one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class DatabaseClock:  # agentapp: shared ok - a reading takes the place of the one before, which is atomic
    """PostgreSQL's clock is read when a connection is opened, and every few seconds by the heartbeat. In
    between, the host's steady clock counts on from the last reading: the time costs no round trip, and the
    host's wall clock has no part in it. How wrong the time can be is half of what the quickest reading of
    late took, far below `CLOCK_SKEW_SECONDS`, which is what those who compare times allow for.

    All processes of a host have the same steady clock, so what a parent has read holds after a fork.

    SQLite's time is this machine's.
    """

    def __init__(
        self,
        ask: Callable[[DatabaseClock], object] | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
    ) -> None:
        """``ask`` opens a connection, or takes one, and calls `read`. Without it, the clock is the host's."""
        self._ask, self._wall, self._steady = ask, wall, steady
        self._reading: Reading | None = None

    @classmethod
    def of(cls, engine: Engine, looking: Callable[[], AbstractContextManager[Asked]]) -> DatabaseClock:
        if engine.dialect.name == "sqlite":
            return cls()

        def ask(clock: DatabaseClock) -> None:
            with looking() as db:
                clock.read(db.run_text)

        clock = cls(ask)
        event.listen(engine, "connect", lambda connection, record: clock.read_from(connection))
        return clock

    def now(self) -> float:
        """Seconds since 1970. If the database was never reached yet, it is asked: nobody decides anything by
        the host's clock. Raises `StorageUnavailable` if it cannot be reached.
        """
        if self._reading is None and self._ask is not None:
            self._ask(self)
        return self.estimate()

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def estimate(self) -> float:
        """The same for what decides nothing and must not wait: by the host's clock until there is a better
        one.
        """
        reading = self._reading
        return self._wall() if reading is None else self._steady() + reading.ahead

    def read_again(self) -> None:
        if self._ask is not None:
            self._ask(self)

    def read(self, execute: Execute) -> None:
        sent = self._steady()
        (told,) = execute(ASK).fetchone()
        came = self._steady()
        newer = Reading(told - (sent + came) / 2, (came - sent) / 2, came)
        before = self._reading
        self._reading = newer if before is None else before.narrowed_by(newer)

    def read_from(self, connection: Any) -> None:
        """From a new connection of the driver, which would begin a transaction otherwise."""
        connection.autocommit = True
        try:
            self.read(connection.execute)
        finally:
            connection.autocommit = False

    def host_ahead(self) -> float | None:
        """By how many seconds this host's wall clock is ahead. None while it is not known, and on SQLite."""
        reading = self._reading
        return None if reading is None else self._wall() - self._steady() - reading.ahead

    def problem(self) -> str | None:
        """What to tell if this host's wall clock is surely wrong, or the database's is."""
        ahead, reading = self.host_ahead(), self._reading
        if ahead is None or reading is None:
            return None
        error = reading.error + MOST_DRIFT * (self._steady() - reading.at)
        if abs(ahead) - error <= MOST_APART_SECONDS:
            return None
        apart = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database server's"
        return f"this host's clock is {apart}: keep both in step (NTP)"

    def problem_by(self, connection: Connection) -> str | None:
        """The same after another look at the database's clock."""
        if self._ask is not None:
            self.read(connection.exec_driver_sql)
        return self.problem()


def now_in(db: Session) -> datetime:
    """The time for what is stored in this transaction."""
    clock: DatabaseClock = db.info[CLOCK]
    return clock.utc_now()


def utc_now_at(connection: Connection) -> datetime:
    """The same on a connection that belongs to no `Database`, such as that of a migration."""
    clock = DatabaseClock()
    if connection.dialect.name != "sqlite":
        clock.read(connection.exec_driver_sql)
    return clock.utc_now()
