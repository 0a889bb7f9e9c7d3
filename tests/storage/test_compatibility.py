"""Which code works with which schema, what a migration waits for, and a worker whose schema does not fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, insert, inspect, text

from agentapp.errors import StartError, StorageUnavailable
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import migrate, migration_lock, schema
from agentapp.storage.db import Database
from agentapp.storage.engines import make_engine
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.conditions import SILENT_AFTER
from tests.support.commands import set_revision
from tests.support.postgres import postgres_url
from tests.support.server_users import wait_for
from tests.support.times import utc_now

FITS, TOO_NEW = ("0099", schema.HEAD), ("0099", "0099")
ADD = "op.add_column('workers', sa.Column('added', sa.Integer(), nullable=True))"


def test_a_newer_schema_that_this_code_can_work_with_is_used_and_left_alone(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert migrate.upgrade(url) == schema.HEAD
    set_revision(url, *FITS)
    assert schema.schema_problem(engine) is None
    schema.require_usable(url)
    monkeypatch.setitem(sys.modules, "alembic", None)  # to import it is an error
    assert migrate.upgrade(url) == "0099"


@pytest.mark.parametrize(
    "forget", ["DELETE FROM schema_compatibility", "DROP TABLE schema_compatibility"], ids=["row", "table"]
)
def test_a_newer_schema_that_does_not_say_who_fits_is_not_used(url: str, engine: Engine, forget: str) -> None:
    migrate.upgrade(url)
    set_revision(url, *FITS)
    with engine.begin() as connection:
        connection.execute(text(forget))
    assert "update agentapp" in str(schema.schema_problem(engine))


def test_a_revision_that_only_adds_leaves_who_fits_and_one_that_takes_away_says_it(
    url: str, engine: Engine, next_revision: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(url)
    before = schema.HEAD
    adds = next_revision(ADD)
    migrate.upgrade(url)
    monkeypatch.setattr(schema, "HEAD", before)
    assert schema.schema_problem(engine) is None
    monkeypatch.setattr(schema, "HEAD", adds)
    takes = next_revision("op.drop_table('notes')", oldest_code=adds)
    migrate.upgrade(url)
    for knows, fits in ((takes, True), (adds, True), (before, False)):
        monkeypatch.setattr(schema, "HEAD", knows)
        assert (schema.schema_problem(engine) is None) == fits, knows
    assert f"works with those that know {adds}" in str(schema.schema_problem(engine))


def test_a_new_database_notes_who_fits_too(
    url: str, engine: Engine, next_revision: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = schema.HEAD
    next_revision("op.drop_table('notes')", oldest_code="0013")
    migrate.upgrade(url)
    monkeypatch.setattr(schema, "HEAD", before)
    assert schema.schema_problem(engine) is not None


def test_nothing_is_taken_away_from_workers_that_run(
    url: str, engine: Engine, next_revision: Callable[..., str]
) -> None:
    """One that has reported lately and does not know the revision is named by its host; others are not."""
    migrate.upgrade(url)
    takes = next_revision("op.drop_table('notes')", oldest_code=(knows := schema.HEAD))
    with engine.begin() as connection:
        add_worker(connection, "a", None)
        add_worker(connection, "b", "0011")
        add_worker(connection, "b", "0011")
        add_worker(connection, "c", knows)
        add_worker(connection, "d", None, seconds_ago=SILENT_AFTER.total_seconds() + 5)
    with pytest.raises(StartError, match=rf"do not know revision {knows}, .*: 1 on a, 2 on b\. Update"):
        migrate.upgrade(url)
    assert inspect(engine).has_table("notes")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM workers WHERE host IN ('a', 'b')"))
    assert migrate.upgrade(url) == takes
    assert not inspect(engine).has_table("notes")


def test_workers_from_before_they_told_what_they_know_count_as_old(
    url: str, engine: Engine, next_revision: Callable[..., str]
) -> None:
    with schema.migrating(url) as connection:
        command.upgrade(migrate.config_for(connection), "0011")
        connection.execute(
            text(
                "INSERT INTO workers (id, host, pid, started_at, seen_at, numbers)"
                " VALUES ('w', 'a', 1, :now, :now, '{}')"
            ),
            {"now": utc_now()},
        )
    next_revision("pass", oldest_code=schema.HEAD)
    with pytest.raises(StartError, match="1 on a"):
        migrate.upgrade(url)
    with engine.connect() as connection:
        assert schema.revision_of(connection) == "0011"


def add_worker(connection: Connection, host: str, knows: str | None, seconds_ago: float = 0) -> None:
    seen = utc_now() - timedelta(seconds=seconds_ago)
    (count,) = connection.execute(text("SELECT count(*) FROM workers")).one()
    values = {"id": f"w{count}", "host": host, "pid": 1, "started_at": seen, "seen_at": seen}
    connection.execute(insert(WorkerRow).values(**values, numbers={}, knows_revision=knows))


# What a migration waits for.


@pytest.fixture
def postgres(next_revision: Callable[..., str]) -> Iterator[Engine]:
    """A database to which a column is to be added."""
    with postgres_url() as url:
        migrate.upgrade(url)
        next_revision(ADD)
        engine = make_engine(url)
        yield engine
        engine.dispose()


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


@contextmanager
def reading_for_long(engine: Engine) -> Iterator[None]:
    """A transaction that has read the table and goes on."""
    with engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM workers"))
        yield


def is_waiting(connection: Connection) -> bool:
    """Somebody waits for a lock on a table."""
    query = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'workers'::regclass"
    return connection.scalar(text(query)) is not None


def test_nobody_waits_long_behind_a_migration_that_waits(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it stands in the queue of a table, everybody else who comes stands behind it."""
    monkeypatch.setattr(migration_lock, "TABLE_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0.2)
    with postgres.connect() as watcher, postgres.connect() as worker, ThreadPoolExecutor(1) as pool:
        watcher = watcher.execution_options(isolation_level="AUTOCOMMIT")
        worker.execute(text("SET lock_timeout = '6s'"))
        with reading_for_long(postgres):
            done = pool.submit(migrate.upgrade, url_of(postgres))
            for _ in range(2):  # it tries again
                wait_for(lambda: is_waiting(watcher) or done.done())
                worker.execute(text("SELECT count(*) FROM workers"))  # raises if it has to wait that long
                worker.commit()
            assert not done.done()
        assert done.result() == schema.HEAD


def test_a_migration_gives_up_in_the_end_and_has_changed_nothing(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "MIGRATION_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(migration_lock, "TABLE_WAIT_SECONDS", 0.2)
    with (
        reading_for_long(postgres),
        pytest.raises(StartError, match="other transactions have held its table"),
    ):
        migrate.upgrade(url_of(postgres))
    assert "added" not in {column["name"] for column in inspect(postgres).get_columns("workers")}
    assert migrate.upgrade(url_of(postgres)) == schema.HEAD


def test_another_process_that_migrates_for_too_long_is_said(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_lock, "MIGRATION_WAIT_SECONDS", 1)
    with (
        schema.migrating(url_of(postgres)),
        pytest.raises(StartError, match="another process has been migrating"),
    ):
        migrate.upgrade(url_of(postgres))


def test_what_a_migration_does_may_take_longer_than_a_statement_may(
    next_revision: Callable[..., str],
) -> None:
    with postgres_url() as url:
        migrate.upgrade(url)
        engine = make_engine(url)
        with engine.begin() as connection:
            name = connection.scalar(text("SELECT current_database()"))
            for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(text(f"ALTER DATABASE {name} SET {limit} = '300ms'"))
        engine.dispose()
        next_revision("op.execute('SELECT pg_sleep(0.5)'); __import__('time').sleep(0.5); " + ADD)
        assert migrate.upgrade(url) == schema.HEAD


# A worker whose schema does not fit.


@pytest.fixture
def worker(url: str) -> Iterator[Database]:
    migrate.upgrade(url)
    binder = ThreadBinder()
    made = Database(url, binder)
    with binder.bound(RequestScope(request_id="r")):
        yield made
    made.close()


def uses(db: Database) -> list[Callable[[], object]]:
    def reading() -> None:
        with db.reading() as session:
            session.execute(text("SELECT 1"))

    def writing() -> None:
        with db.writing() as session:
            session.execute(text("SELECT 1"))

    def transaction() -> None:
        with db.transaction() as connection:
            connection.run_text("SELECT 1")

    def looking() -> None:
        with db.looking() as connection:
            connection.run_text("SELECT 1")

    return [reading, writing, transaction, looking]


@pytest.mark.parametrize(
    ("schema_now", "said"),
    [(TOO_NEW, "update agentapp"), (("0001", "0001"), "run `agentapp db upgrade`")],
    ids=["newer", "older"],
)
def test_a_worker_does_not_touch_a_database_that_does_not_fit_until_it_does_again(
    url: str, worker: Database, schema_now: tuple[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker.schema.watch()
    for use in uses(worker):
        use()
    set_revision(url, *schema_now)
    for _ in range(2):
        assert said in str(worker.schema.look())
    for use in uses(worker):
        with pytest.raises(StorageUnavailable, match="do not fit together") as refused:
            use()
        assert said in str(refused.value.__cause__)
    set_revision(url, schema.HEAD)
    assert worker.schema.look() is None
    for use in uses(worker):
        use()
    told = [record.getMessage() for record in caplog.records if record.name.endswith("schema_gate")]
    assert len(told) == 2, "once when it began and once when it was over"
    assert said in told[0]
    assert told[1] == "schema: fits again"


def test_a_worker_that_starts_with_a_schema_that_does_not_fit_begins_by_itself_later(
    url: str, worker: Database
) -> None:
    set_revision(url, *TOO_NEW)
    worker.schema.watch()
    with pytest.raises(StorageUnavailable):
        uses(worker)[0]()
    set_revision(url, *FITS)
    worker.schema.look()
    uses(worker)[0]()


def test_a_worker_that_starts_while_the_database_is_away_uses_it_only_when_it_was_seen(
    worker: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[Any] = [StorageUnavailable("away")]
    monkeypatch.setattr("agentapp.storage.schema_gate.find_problem", lambda engine: raising(away[0]))
    worker.schema.watch()
    for use in uses(worker):
        with pytest.raises(StorageUnavailable, match="do not fit"):
            use()
    with pytest.raises(StorageUnavailable, match="away"):
        worker.schema.look()
    monkeypatch.undo()
    worker.schema.look()
    for use in uses(worker):
        use()


def raising(error: Exception) -> None:
    raise error


def test_commands_and_tests_that_do_not_watch_look_at_nothing(url: str, worker: Database) -> None:
    set_revision(url, *TOO_NEW)
    uses(worker)[0]()
