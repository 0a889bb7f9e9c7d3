"""The database's clock: how it is read, and that a host's own clock has no part in it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.errors import StorageUnavailable
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import clock as module
from agentapp.storage.clock import MOST_APART_SECONDS, MOST_DRIFT, DatabaseClock, Reading
from agentapp.storage.clock_watch import WatchClock
from agentapp.storage.db import Database
from agentapp.storage.inspection import inspect_database
from agentapp.telemetry import NullTelemetry
from tests.support.databases import only_postgresql, only_sqlite
from tests.support.server import free_port

THERE = 1_700_000_000.0  # the database's time when the host's steady clock says 0


class World:
    """A database with a clock, a host with two, and the network between them."""

    def __init__(self, host_ahead: float = 0.0) -> None:
        self.true, self.database_ahead, self.host_ahead = 0.0, 0.0, host_ahead
        self.way_there = self.way_back = 0.001
        self.asked = 0
        self.clock = DatabaseClock(self.ask, lambda: THERE + self.true + self.host_ahead, lambda: self.true)

    @property
    def time(self) -> float:
        return THERE + self.true + self.database_ahead

    def ask(self, clock: DatabaseClock) -> None:
        self.asked += 1
        clock.read(lambda statement: self)

    def fetchone(self) -> tuple[float]:
        self.true += self.way_there
        told = self.time
        self.true += self.way_back
        return (told,)

    def read(self, way_there: float, way_back: float) -> None:
        self.way_there, self.way_back = way_there, way_back
        self.clock.read_again()

    @property
    def error(self) -> float:
        return abs(self.clock.now() - self.time)


def test_the_time_is_asked_for_once_and_counted_on_from_there() -> None:
    world = World(host_ahead=3600.0)
    for _ in range(3):
        assert world.error <= 0.001
        world.true += 100.0
    assert world.asked == 1, "only the first use waits for the database"


def test_a_host_whose_clock_is_set_notices_nothing() -> None:
    world = World()
    world.clock.read_again()
    for ahead in (-86_400.0, 0.5, 10.0**9):
        world.host_ahead = ahead
        assert world.error <= 0.001


def test_a_reading_that_took_long_spoils_nothing() -> None:
    world = World()
    world.read(0.001, 0.001)
    world.true += 5.0
    world.read(9.0, 0.0)
    assert world.error <= 0.001 + 14 * MOST_DRIFT


def test_the_first_reading_may_be_a_poor_one_and_the_next_ones_mend_it() -> None:
    world = World()
    world.read(3.0, 0.0)
    assert world.error == pytest.approx(1.5)
    world.read(0.0, 3.0)
    assert world.error < 0.01, "each alone is wrong by 1.5 s, and they are so in different directions"


def test_if_the_databases_clock_is_set_or_another_server_takes_over_that_is_the_time() -> None:
    world = World()
    world.read(0.001, 0.001)
    for ahead in (-3.0, 7200.0):
        world.database_ahead = ahead
        world.read(0.1, 0.1)
        assert world.error <= 0.1


@given(st.lists(st.tuples(*[st.floats(0, 5)] * 2, st.floats(0, 600)), min_size=1))
def test_however_slow_the_network_is_the_error_is_known_and_never_grows_by_a_reading(
    readings: list[tuple[float, float, float]],
) -> None:
    world, known = World(), float("inf")
    for way_there, way_back, pause in readings:
        world.read(way_there, way_back)
        reading = world.clock._reading
        assert reading is not None
        assert world.error <= reading.error + 1e-6
        known += MOST_DRIFT * (pause + way_there + way_back)
        assert reading.error <= min(known, (way_there + way_back) / 2) + 1e-6
        known = reading.error + MOST_DRIFT * pause
        world.true += pause


def test_a_steady_clock_that_is_a_little_wrong_is_followed() -> None:
    """One that runs by 200 millionths too fast, for a day."""
    fast, readings = 1.0002, 24 * 720
    reading = Reading(0.0, 0.001, 0.0)
    for n in range(1, readings + 1):
        at = 5.0 * n * fast
        reading = reading.narrowed_by(Reading(5.0 * n - at, 0.001, at))
        assert abs(reading.at + reading.ahead - 5.0 * n) <= 0.002


def test_what_decides_nothing_does_not_wait_for_the_database() -> None:
    world = World(host_ahead=50.0)
    assert world.clock.estimate() == THERE + 50.0
    assert world.asked == 0
    world.clock.read_again()
    assert world.clock.estimate() == pytest.approx(world.time, abs=0.001)


def test_nobody_decides_by_the_hosts_clock_while_the_database_is_away() -> None:
    db = Database(f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none", ThreadBinder())
    with pytest.raises(StorageUnavailable):
        db.clock.now()
    assert db.clock.estimate() == pytest.approx(time.time(), abs=60)
    assert (db.clock.host_ahead(), db.clock.problem()) == (None, None)


@only_sqlite
def test_on_sqlite_it_is_this_machines_clock(db: Database) -> None:
    db.clock._wall = lambda: THERE
    assert (db.clock.now(), db.clock.utc_now()) == (THERE, datetime.fromtimestamp(THERE, UTC))
    db.clock.read_again()
    assert (db.clock.host_ahead(), db.clock.problem()) == (None, None)


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    made = Database(database_url, ThreadBinder())
    yield made
    made.close()


@only_postgresql
def test_every_new_connection_tells_the_time(db: Database) -> None:
    """Also one that was opened for something else: the time is never asked for by itself."""
    db.clock._wall = lambda: THERE
    db.clock._ask = None
    with db._binder.bound(RequestScope(request_id="r")), db.writing() as writing:
        assert writing.info[module.CLOCK] is db.clock
        assert db.clock.now() == pytest.approx(time.time(), abs=1)
    assert db.clock.host_ahead() == pytest.approx(THERE - time.time(), abs=1)


@only_postgresql
def test_the_connection_that_told_the_time_is_in_no_transaction(db: Database) -> None:
    borrowed = db.engine.raw_connection()
    driver: Any = borrowed.dbapi_connection
    assert (driver.autocommit, driver.info.transaction_status.name) == (False, "IDLE")
    borrowed.close()


@only_postgresql
def test_it_goes_on_in_a_forked_child_that_has_no_connection_yet(db: Database) -> None:
    db.clock.now()
    db.clock._wall, db.clock._ask = (lambda: THERE), None
    child = os.fork()
    if child == 0:
        os._exit(0 if abs(db.clock.now() - time.time()) < 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_in_between_it_counts_by_the_clock_that_a_sleeping_machine_does_not_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {7: 7_777.0}.__getitem__, raising=False)
    assert module.steady() == 7_777.0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    assert module.steady() == 5.0


@only_postgresql
def test_the_doctor_and_the_server_measure_alike(database_url: str) -> None:
    ahead = inspect_database(database_url).clock_ahead
    assert ahead == pytest.approx(0.0, abs=MOST_APART_SECONDS)


class Gauges(NullTelemetry):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        assert name == "host_clock_ahead_seconds"
        self.seen.append(round(value, 2))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def take() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        assert {record.levelno for record in caplog.records} <= {logging.WARNING}
        caplog.clear()
        return found

    return take


def test_a_clock_that_is_wrong_is_told_once_and_again_when_it_changes_much_and_when_it_is_right(
    told: Callable[[], list[str]],
) -> None:
    world, gauges = World(), Gauges()
    job = WatchClock(world.clock, gauges)

    def beats(ahead: float) -> list[str]:
        world.host_ahead = ahead
        for _ in range(3):
            world.true += 5.0
            job.run(0.0)
        return told()

    assert beats(0.9) == []
    (warning,) = beats(2.5)
    assert warning == "this host's clock is 2.5 s ahead of the database server's: keep both in step (NTP)"
    assert beats(2.9) == []
    (warning,) = beats(-30.0)
    assert "30.0 s behind the database" in warning
    assert beats(0.0) == ["this host's clock agrees with the database server's again"]
    assert beats(0.1) == []
    assert gauges.seen[::3] == [0.9, 2.5, 2.9, -30.0, 0.0, 0.1]


def test_a_slow_network_makes_no_clock_wrong() -> None:
    world = World(host_ahead=1.5)
    world.read(2.0, 0.0)
    assert world.clock.problem() is None, "the reading may be wrong by a second"
    world.read(0.001, 0.001)
    assert world.clock.problem() is not None
