"""A PostgreSQL that hangs, and a process of ours that does: everybody else goes on within a few seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import ProgrammingError

from agentapp.errors import StorageUnavailable
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.db import Database
from agentapp.storage.hang_watch import HANGS, HangWatch
from agentapp.storage.idle_pool import IDLE_SECONDS as IDLE
from agentapp.storage.models import Tenant
from agentapp.storage.postgres_options import PostgresOptions, statement_seconds
from agentapp.storage.statements import Statement
from tests.support.postgres_server import PostgresServer, postgres_server

IDLE_SECONDS = 1.0
OPTIONS = PostgresOptions(
    statement_seconds=20.0, idle_transaction_seconds=IDLE_SECONDS, lock_seconds=20.0, pgbouncer="0"
)
LOCK = Statement(select(Tenant.name).where(Tenant.id == "default").with_for_update())
RENAME = text("UPDATE tenants SET name = 'changed' WHERE id = 'default'")
LONGEST = 10.0  # promised for any request


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        made.execute(
            "INSERT INTO tenants (id, name, created_at) VALUES ('default', 'kept', now())", "agentapp"
        )
        yield made


@pytest.fixture(autouse=True)
def suspects_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentapp.storage.hang_watch.SUSPICIOUS_SECONDS", 0.5)


@contextmanager
def opened(url: str, options: PostgresOptions = OPTIONS) -> Iterator[Database]:
    binder = ThreadBinder()
    made = Database(url, binder, postgres=options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def db(server: PostgresServer) -> Iterator[Database]:
    with opened(f"{server.url}?connect_timeout=2") as made:
        yield made
        server.thaw()


def read(db: Database) -> Any:
    with db._binder.bound(RequestScope(request_id="r")), db.reading() as session:
        return session.scalar(text("SELECT name FROM tenants"))


def look(db: Database) -> Any:
    with db.looking() as connection:
        return connection.run_text("SELECT name FROM tenants").fetchone()[0]


def write(db: Database) -> None:
    with db.writing() as session:
        session.execute(RENAME)
        session.execute(text("UPDATE tenants SET name = 'kept' WHERE id = 'default'"))


def transact(db: Database) -> None:
    with db.transaction() as connection:
        connection.run(LOCK, {}).all()


def seconds_of(act: Callable[[], Any]) -> float:
    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        act()
    return time.monotonic() - began


def wait_until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


# --- the server hangs


def test_nobody_waits_long_for_a_server_that_hangs_and_all_is_well_when_it_goes_on(
    server: PostgresServer, db: Database
) -> None:
    for act in (read, look, write, transact):
        act(db)
    with db.looking() as connection:
        used = connection._connection
    server.freeze()
    assert seconds_of(lambda: look(db)) < LONGEST
    assert used.closed, "or the late answer would be taken for that of the next call"
    # More at once than may write, and more than the pool has: those who wait for others give up with them.
    with ThreadPoolExecutor(24) as pool:
        asked = [
            pool.submit(seconds_of, lambda act=act: act(db)) for act in (read, look, write, transact) * 6
        ]
        assert max(each.result() for each in asked) < LONGEST
    assert db.connector is not None
    assert db.connector.watch.hangs
    assert max(seconds_of(lambda act=act: act(db)) for act in (read, look, write, transact)) < 0.5
    tries = [each for each in threading.enumerate() if each.name == "agentapp-database-watch"]
    assert len(tries) == 1, "however many wait, one asks"
    server.thaw()
    watch = db.connector.watch
    wait_until(lambda: not watch.hangs, 5.0)
    for act in (read, look, write, transact):
        act(db)
    assert read(db) == "kept"
    assert db.connections_in_use() == 0


def test_a_statement_that_only_takes_long_is_left_alone(db: Database) -> None:
    """Longer than it takes to suspect that the server hangs."""
    with db.looking() as connection:
        assert connection.run_text("SELECT pg_sleep(1.2), 'slept'").fetchone()[1] == "slept"
    assert not db.connector.watch.hangs  # type: ignore[union-attr]


def test_a_server_that_does_not_even_end_a_statement_in_its_time_is_not_waited_for(
    server: PostgresServer,
) -> None:
    """As if only this one connection hung: the server answers to everybody else."""
    with opened(server.url, PostgresOptions(statement_seconds=0.5, pgbouncer="0")) as db:
        with db.looking() as connection:
            pid = connection.run_text("SELECT pg_backend_pid()").fetchone()[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert seconds_of(lambda: look(db)) < LONGEST
        finally:
            os.kill(pid, signal.SIGCONT)
        assert look(db) == "kept"


def test_a_process_that_was_itself_stopped_takes_the_answer_that_has_come(db: Database) -> None:
    with db.looking() as connection:
        raw = connection._connection
        raw.most_silent_seconds = 0.0  # whatever the clock says
        with pytest.raises(psycopg.OperationalError, match=HANGS), raw.pipeline():
            raw._check_silence(1.0)
    with db.looking() as connection:
        raw = connection._connection
        raw.most_silent_seconds = 0.0
        raw.pgconn.send_query(b"SELECT 1")
        wait_until(raw._has_come)
        raw._check_silence(1.0)
        raw.most_silent_seconds = None
        while raw.pgconn.get_result():
            pass


def test_one_asks_for_all_and_only_after_a_while_of_silence() -> None:
    asked, answers = threading.Semaphore(0), threading.Event()

    def can_answer() -> bool:
        asked.release()
        return answers.wait(0.05)

    watch = HangWatch(can_answer)
    watch.waits(100.0)
    assert not asked.acquire(timeout=0), "somebody had an answer a moment ago"
    watch._answered_at -= 10.0
    for _ in range(20):
        watch.waits(100.0)
    wait_until(lambda: watch.hangs)
    with pytest.raises(StorageUnavailable, match="does not answer"):
        watch.require_answers()
    answers.set()
    wait_until(lambda: not watch.hangs)
    watch.require_answers()
    watch.close()


# --- a process of ours hangs


def hold_in_transaction(url: str, how: str, locked: Any, go_on: Any, ended: Any) -> None:
    """In a process of its own: has a row locked, is stopped there, and goes on when it may."""
    with opened(url) as db:
        try:
            if how == "transaction":
                with db.transaction() as connection:
                    connection.run(LOCK, {}).all()
                    locked.set()
                    assert go_on.wait(30)
                    connection.run_text("UPDATE tenants SET name = 'half done' WHERE id = 'default'")
            else:
                with db.writing() as session:
                    session.execute(RENAME)
                    locked.set()
                    assert go_on.wait(30)
                    session.execute(text("UPDATE tenants SET name = 'half done' WHERE id = 'default'"))
        except StorageUnavailable as error:
            ended.put(error.code)
        else:
            ended.put("committed")
        try:
            ended.put(look(db))
        except StorageUnavailable as error:
            ended.put(error.code)


@pytest.mark.parametrize("how", ["transaction", "writing"])
def test_a_stopped_process_gives_back_its_rows_and_fails_cleanly_when_it_goes_on(
    server: PostgresServer, db: Database, how: str
) -> None:
    context = multiprocessing.get_context("fork")
    locked, go_on, ended = context.Event(), context.Event(), context.SimpleQueue()
    process = context.Process(target=hold_in_transaction, args=(server.url, how, locked, go_on, ended))
    process.start()
    try:
        assert locked.wait(20)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        transact(db)  # it would fail after the time for locks, which is far longer
    finally:
        os.kill(process.pid or 0, signal.SIGCONT)
    go_on.set()
    assert [ended.get(), ended.get()] == ["storage-unavailable", "kept"]
    process.join(20)
    assert read(db) == "kept"


# --- what is set


def settings_on(db: Database) -> dict[str, str]:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with db.looking() as connection:
        return {name: connection.run_text(f"SHOW {name}").fetchone()[0] for name in names}


def client_settings_on(db: Database) -> dict[str, str]:
    with db.looking() as connection:
        return connection._connection.info.get_parameters()


def test_time_outs_are_set_on_every_connection_and_what_the_url_says_comes_first(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PostgresOptions(
        statement_seconds=10.0,
        idle_transaction_seconds=5.0,
        lock_seconds=2.5,
        keepalive_seconds=6,
        tcp_user_seconds=4.5,
    )
    with opened(server.url, options) as db:
        assert settings_on(db) == {
            "statement_timeout": "10s",
            "lock_timeout": "2500ms",
            "idle_in_transaction_session_timeout": "5s",
        }
        found = client_settings_on(db)
        assert (found["keepalives_idle"], found["keepalives_interval"]) == ("6", "3")
        assert (found["keepalives_count"], found["tcp_user_timeout"]) == ("3", "4500")
    theirs = "?connect_timeout=9&tcp_user_timeout=1234&options=-c%20statement_timeout%3D33s"
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=44s -c statement_timeout=44s")
    with opened(server.url + theirs, options) as db:
        assert settings_on(db) == {
            "statement_timeout": "33s",
            "lock_timeout": "44s",
            "idle_in_transaction_session_timeout": "5s",
        }
        found = client_settings_on(db)
        assert (found["connect_timeout"], found["tcp_user_timeout"]) == ("9", "1234")
        with db.looking() as connection:
            assert connection._connection.most_silent_seconds == 35.0
    with (
        opened(server.url + "?options=-c%20statement_timeout%3D0", options) as db,
        db.looking() as connection,
    ):
        assert connection._connection.most_silent_seconds is None


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ("", None),
        ("-c lock_timeout=5s", None),
        ("-c statement_timeout=1500", 1.5),
        ("-c statement_timeout=1min --statement_timeout=2s", 2.0),
        ("-c statement_timeout=0", None),
    ],
)
def test_the_limit_of_a_statement_is_read_from_options(options: str, seconds: float | None) -> None:
    assert statement_seconds(options) == seconds


def test_threads_that_read_and_then_look_never_wait_for_a_second_connection(server: PostgresServer) -> None:
    """All of a full pool would wait for each other, until the time for a connection is over."""
    ready = threading.Barrier(2)

    def read_and_look(number: int) -> str:
        with db._binder.bound(RequestScope(request_id=f"r{number}")):
            with db.reading() as session:
                session.execute(text("SELECT 1"))
            ready.wait(20)
            found = str(look(db))
            ready.wait(20)
            assert db.connections_in_use() == 2
            ready.wait(20)
            with pytest.raises(ProgrammingError), db.looking() as connection:
                connection.run_text("SELECT no_such()")
            return found + str(look(db))  # not on the transaction that failed

    with opened(server.url, replace(OPTIONS, pool=2)) as db, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read_and_look, range(2))) == ["keptkept"] * 2


def test_connections_that_nobody_needs_are_given_back(server: PostgresServer) -> None:
    def open_there() -> int:
        mine = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'agentapp' AND application_name = 'pool'"
        )
        found: int = server.execute(mine)[0][0]
        return found

    with opened(f"{server.url}?application_name=pool", replace(OPTIONS, pool=6)) as db:
        with ExitStack() as busy:
            for _ in range(6):
                busy.enter_context(db.looking())
        assert open_there() == 6
        look(db)
        pool: Any = db.engine.pool
        for record in list(pool._pool.queue)[:5]:  # as if those had come back long ago
            record.info["returned_at"] -= IDLE + 1
        pool._looked_at -= IDLE
        look(db)
        wait_until(lambda: open_there() == 1)
        with ExitStack() as busy:
            for _ in range(6):
                busy.enter_context(db.looking())
            assert db.connections_in_use() == 6, "there is room for as many as before"
