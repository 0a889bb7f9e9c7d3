"""What makes a worker not ready, and that asking costs neither time nor the pool's connections."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.errors import DiskFull
from agentapp.isolation import ThreadBinder
from agentapp.storage import readiness
from agentapp.storage.clock import Reading
from agentapp.storage.db import Database
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.readiness import NO_ANSWER, Readiness
from agentapp.web.parts import Parts
from tests.support.commands import set_revision
from tests.support.databases import only_postgresql, only_sqlite
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.users import JSON

CANNOT = "database: it cannot be reached or used"


@contextmanager
def asked(url: str, **options: Any) -> Iterator[tuple[Database, Readiness]]:
    db = Database(url, ThreadBinder(), **options)
    found = Readiness(db)
    try:
        yield db, found
    finally:
        found.close()
        db.close()


@pytest.fixture(autouse=True)
def remembers_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "remembered" not in request.node.name:
        monkeypatch.setattr(readiness, "REMEMBERED_SECONDS", -1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server({"max_connections": "14"}) as made:
        yield made


def test_another_schema_is_not_ready_and_the_right_one_is(database_url: str) -> None:
    with asked(database_url) as (_, found):
        assert found.problem() is None
        set_revision(database_url, "0001")
        assert str(found.problem()).startswith("schema: the database is at revision 0001")


def test_a_full_disk_is_not_ready(database_url: str) -> None:
    with asked(database_url) as (db, found):
        assert found.problem() is None
        with pytest.raises(DiskFull):
            raise db.disk.full("no room")
        assert found.problem() == "disk: the database had no room for something a moment ago"
        db.disk._full_at = -1e9
        assert found.problem() is None


@only_sqlite
def test_less_room_than_the_reserve_is_not_ready(database_url: str) -> None:
    with asked(database_url, disk_reserve=10**18) as (_, found):
        assert "MB are free, so nothing new is begun" in str(found.problem())


@only_sqlite
def test_a_file_that_is_gone_is_not_made_anew(database_url: str) -> None:
    file = Path(database_url.removeprefix("sqlite:///"))
    file.unlink()
    with asked(database_url) as (_, found):
        assert found.problem() == CANNOT
    assert not file.exists()


@only_sqlite
def test_somebody_who_writes_does_not_make_it_unready(database_url: str) -> None:
    with asked(database_url) as (db, found), db.writing():
        assert found.problem() is None


def test_a_file_that_this_user_cannot_write_is_not_ready(sqlite_template: Path) -> None:
    told: multiprocessing.SimpleQueue[str | None] = multiprocessing.get_context("fork").SimpleQueue()

    def look_as_somebody(file: Path) -> None:
        if os.geteuid() == 0:  # who may write everywhere
            os.setuid(65534)
        told.put(Readiness(Database(f"sqlite:///{file}", ThreadBinder())).problem())

    # Not in pytest's directory, which others than its owner cannot enter.
    with tempfile.TemporaryDirectory(prefix="agentapp-") as home:
        Path(home).chmod(0o755)
        file = Path(home, "agentapp.sqlite3")
        shutil.copy(sqlite_template, file)
        file.chmod(0o444)
        process = multiprocessing.get_context("fork").Process(target=look_as_somebody, args=(file,))
        process.start()
        found = told.get()
        process.join(10)
    assert str(found).startswith("writable: the database's file or its directory cannot be written")


@only_postgresql
def test_a_host_whose_clock_is_wrong_is_not_ready(database_url: str) -> None:
    with asked(database_url) as (db, found):
        assert found.problem() is None
        for ahead, where in ((30.0, "30.0 s ahead of"), (-1.5, "1.5 s behind")):
            db.clock._wall = lambda ahead=ahead: time.time() + ahead  # type: ignore[misc]
            told = f"clock: this host's clock is {where} the database server's: keep both in step (NTP)"
            assert found.problem() == told
        db.clock._wall = time.time
        assert found.problem() is None


@only_postgresql
def test_whether_the_clock_is_wrong_is_looked_at_anew_each_time(database_url: str) -> None:
    """Also while the heartbeat hangs. What was read before is of a clock that was an hour ahead."""
    with asked(database_url) as (db, found):
        db.clock.now()
        db.clock._reading = Reading(db.clock._reading.ahead + 3600, 0.0, db.clock._reading.at)
        assert found.problem() is None


def test_a_read_only_database_is_not_ready(server: PostgresServer) -> None:
    with asked(server.url) as (_, found):
        assert found.problem() is None
        server.set_read_only(True)
        try:
            assert str(found.problem()).startswith("writable: the database is read-only")
        finally:
            server.set_read_only(False)
        assert found.problem() is None


def test_a_server_that_hangs_is_not_ready_within_its_deadline(server: PostgresServer) -> None:
    with asked(server.url) as (_, found):
        assert found.problem() is None
        server.freeze()
        try:
            began = time.monotonic()
            with ThreadPoolExecutor(20) as pool:
                told = list(pool.map(lambda n: found.problem(), range(20)))
            assert time.monotonic() - began < readiness.CHECK_SECONDS + 1
            assert set(told) <= {NO_ANSWER, CANNOT}
            assert [each.name for each in threading.enumerate()].count("agentapp-readiness") <= 1
        finally:
            server.thaw()
        ends = time.monotonic() + 5
        while found.problem() is not None:
            assert time.monotonic() < ends


def test_a_server_that_was_restarted_is_ready_at_once(server: PostgresServer) -> None:
    with asked(server.url) as (_, found):
        assert found.problem() is None
        server.restart("immediate")
        assert found.problem() is None
        server.stop()
        assert found.problem() == CANNOT
        server.start()
        assert found.problem() is None


def test_a_pool_that_is_all_lent_and_a_server_that_is_full_do_not_make_it_lie(server: PostgresServer) -> None:
    with asked(server.url, postgres=PostgresOptions(pool=2)) as (db, found), ExitStack() as lent:
        assert found.problem() is None
        for _ in range(2):
            lent.enter_context(db.looking())
        assert found.problem() is None
        with suppress(psycopg.OperationalError):
            while True:
                lent.enter_context(psycopg.connect(server.url.replace("+psycopg", "")))
        assert found.problem() is None


def test_what_was_found_is_remembered_for_a_moment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(database_url) as (_, found):
        looks: list[int] = []
        look = found._look
        monkeypatch.setattr(found, "_look", lambda: (looks.append(1), look())[1])
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda n: found.problem(), range(500))) == {None}
        assert len(looks) <= 3, "five hundred who ask cost a look or two"


@only_postgresql
def test_no_word_of_the_database_itself_is_told_to_whoever_asks(
    make_app: Callable[..., Flask], settings: Settings, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(wanted=replace(settings, database_url="postgresql+psycopg://me:secret@127.0.0.1:1/x"))
    answer = app.test_client().get("/readyz", headers=JSON)
    assert (answer.status_code, answer.json["code"]) == (503, "storage-unavailable")
    assert answer.json["detail"] == CANNOT
    assert "127.0.0.1" in caplog.text
    assert "secret" not in caplog.text


def test_a_worker_that_is_ending_says_so(app: Flask, parts: Parts) -> None:
    client = app.test_client()
    assert client.get("/readyz").text == "ready\n"
    parts.drain(3600)
    answer = client.get("/readyz", headers=JSON)
    assert (answer.status_code, answer.json["code"]) == (503, "draining")
    assert answer.json["detail"].startswith("draining: ")
