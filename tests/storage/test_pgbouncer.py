"""Through the real PgBouncer, which gives each transaction another connection of the few that it shares."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from flask import Flask
from sqlalchemy import text

from agentapp.config import Settings
from agentapp.errors import StatementTimeout
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import migrate, schema
from agentapp.storage.db import Database
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.user_erasure import UserErasureStore
from agentapp.storage.vacuum import Vacuum, Vacuumed
from agentapp.web.parts import Parts
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.server_users import add_people, at_once, seats, served
from tests.support.users import person

pytestmark = needs_pgbouncer

OPTIONS = PostgresOptions(statement_seconds=0.5, idle_transaction_seconds=4.0, lock_seconds=3.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


@pytest.fixture(scope="module")
def url(server: PostgresServer) -> Iterator[str]:
    """Of a pool of two, so that transactions take turns."""
    with pgbouncer(server.port, pool=2) as made:
        yield made


@contextmanager
def opened(url: str, options: PostgresOptions = OPTIONS) -> Iterator[Database]:
    made = Database(url, ThreadBinder(), options.statement_seconds, postgres=options)
    try:
        yield made
    finally:
        made.close()


def shown(db: Database, how: str) -> list[str]:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    if how in ("looking", "transaction"):
        with getattr(db, how)() as connection:
            return [connection.run_text(f"SHOW {name}").fetchone()[0] for name in names]
    with db._binder.bound(RequestScope(request_id="r")), getattr(db, how)() as session:
        return [session.scalar(text(f"SHOW {name}")) for name in names]


@pytest.mark.parametrize("settings", [{}, {"ignore_startup_parameters": "options"}])
def test_it_is_noticed_and_every_transaction_brings_its_time_outs_along(
    server: PostgresServer, settings: dict[str, str]
) -> None:
    with pgbouncer(server.port, pool=1, **settings) as url:
        with opened(url) as db:
            for how in ("looking", "transaction", "reading", "writing"):
                assert shown(db, how) == ["500ms", "3s", "4s"], how
            with pytest.raises(StatementTimeout), db.looking() as connection:
                connection.run_text("SELECT pg_sleep(5)").fetchall()
            assert db.connector is not None
            assert db.connector.is_pooled is True
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
            found = other.execute("SHOW statement_timeout").fetchone()
            assert found == ("0",), "what we set stays ours"
    with opened(server.url) as db:
        shown(db, "looking")
        assert db.connector is not None
        assert db.connector.is_pooled is False


def test_nothing_is_prepared_so_that_any_connection_knows_what_is_asked(url: str) -> None:
    """The driver would prepare a statement at its fifth run, on whatever connection that comes to."""

    def ask(number: int) -> int:
        with db.looking() as connection:
            found: int = connection.run_text("SELECT %s::int", (number,)).fetchone()[0]
            return found

    with opened(url, replace(OPTIONS, statement_seconds=10.0)) as db, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(400))) == list(range(400))


def test_migrations_and_vacuum_go_through_it(server: PostgresServer) -> None:
    name = f"m_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name}")
    with pgbouncer(server.port, name, pool=2) as url:
        migrate.upgrade(url)
        schema.require_usable(url)
        with opened(url, PostgresOptions()) as db:
            assert Vacuum(db).run() is Vacuumed.POSTGRESQL
        with opened(url) as db:
            assert shown(db, "looking") == ["500ms", "3s", "4s"]


def test_a_vacuum_leaves_no_setting_to_others_on_the_same_connection(server: PostgresServer) -> None:
    name = f"v_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name}")
    server.execute(f"ALTER DATABASE {name} SET statement_timeout = '7s'")
    with pgbouncer(server.port, name, pool=1) as url:
        migrate.upgrade(url)
        with opened(url, PostgresOptions()) as db:
            assert Vacuum(db).run() is Vacuumed.POSTGRESQL
            assert shown(db, "transaction")[0] == "7s"


def test_a_turn_a_page_a_search_and_an_erasure_go_through_it(
    make_app: Callable[..., Flask], settings: Settings, url: str
) -> None:
    app = make_app(wanted=replace(settings, database_url=url))
    parts: Parts = app.extensions["agentapp"]
    ann = person(app, "ann")
    chat = ann.new_chat()
    assert ann.ask(chat, "the walnut tree")["status"] == "completed"
    assert [event["event"] for event in ann.stream(chat, "and the oak")][-1] == "turn_completed"
    assert "walnut" in ann.get(f"/chat/{chat}").text
    assert chat in ann.get("/chat?q=waln").text
    by = RequestScope(request_id="r")
    with parts.binder.bound(by):
        assert parts.eraser.erase(UserErasureStore(parts.db).named("ann"), by)["turns"] == 2
    assert parts.db.connector is not None
    assert parts.db.connector.is_pooled is True


def test_several_workers_share_two_connections_and_every_turn_ends(tmp_path: Path, url: str) -> None:
    names = [f"p{number}" for number in range(8)]
    add_people(url, names)
    with served(tmp_path, url, workers=2) as running:
        sitting = seats(running.url, names)
        for _ in range(3):
            answers = at_once([lambda seat=seat: seat.send("a few words") for seat in sitting])
            assert {answer.status for answer in answers} == {200}
        assert all(seat.statuses() == ["completed"] * 3 for seat in sitting)
