"""Whether all workers of all hosts find room on PostgreSQL at once, and who is told if not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentapp.cli.checks.database_checks import check_connections
from agentapp.config import Settings
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.server.options import ServerOptions
from agentapp.storage.connection_budget import ConnectionBudget, find_budget
from agentapp.storage.db import Database
from agentapp.storage.workers import WorkerStore
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.server_users import served
from tests.support.times import utc_now


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server({"max_connections": "40", "superuser_reserved_connections": "3"}) as made:
        yield made


@pytest.fixture
def db(server: PostgresServer) -> Iterator[Database]:
    made = Database(server.url, ThreadBinder())
    yield made
    made.close()
    server.execute("DELETE FROM workers", "agentapp")


def report(db: Database, worker: str, host: str, **numbers: float) -> None:
    with db._binder.bound(RequestScope(request_id="r")):
        WorkerStore(db).report(worker, host, 1, utc_now(), numbers)


def test_hosts_times_workers_times_pool_is_held_against_what_the_server_lets_in(db: Database) -> None:
    assert find_budget(db.engine, "here", 2, 15) == ConnectionBudget(37, 2, 15, 0, 0)
    report(db, "a", "there", db_pool=10.0)
    report(db, "b", "there", db_pool=10.0)
    report(db, "c", "here", db_pool=10.0)  # of before: it is about to be replaced
    report(db, "d", "gone", db_pool=10.0)
    with db.writing() as session:
        past = {"past": utc_now() - timedelta(hours=1)}
        session.execute(text("UPDATE workers SET seen_at = :past WHERE host = 'gone'"), past)
    found = find_budget(db.engine, "here", 2, 15)
    assert found == ConnectionBudget(37, 2, 15, 1, 22)
    assert (found.wanted, found.fits) == (54, False)
    assert str(found) == (
        "2 workers x (15 + 1) connections and 22 of 1 other hosts are 54, and PostgreSQL lets 37 in"
    )
    assert find_budget(db.engine, "here", 1, 14).fits


def test_a_limit_of_the_role_or_the_database_counts_too(server: PostgresServer, db: Database) -> None:
    server.execute("ALTER DATABASE agentapp CONNECTION LIMIT 12")
    try:
        assert find_budget(db.engine, "here", 1, 5).allowed == 12
    finally:
        server.execute("ALTER DATABASE agentapp CONNECTION LIMIT -1")


@pytest.mark.parametrize(("pool", "state"), [(15, "ok"), (40, "do")])
def test_the_doctor_does_the_sum(server: PostgresServer, settings: Settings, pool: int, state: str) -> None:
    values: dict[str, Any] = {"database_url": server.url, "db_pool": pool}
    given = Settings(instance=settings.instance, secret_key=settings.secret_key, **values)
    (line,) = check_connections(given, ServerOptions(grace=1.0))
    assert line.state == state
    assert f"2 workers x ({pool} + 1) connections are {2 * pool + 2}" in line.text


def test_a_server_that_starts_with_too_many_says_so_and_starts(
    server: PostgresServer, tmp_path: Path
) -> None:
    with served(tmp_path, server.url, workers=2, db_pool=30) as running:
        said = running.output()
    assert "agentapp: too few connections: 2 workers x (30 + 1) connections are 62" in said
    assert said.count("too few connections") == 1
