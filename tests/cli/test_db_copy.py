"""`agentapp db copy`: everything of an installation comes along, whatever interrupts it."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from sqlalchemy import Column, LargeBinary, MetaData, Table, inspect, text

from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.storage import schema
from agentapp.storage.copying import database_copy, places
from agentapp.storage.copying import target as filling
from agentapp.storage.copying.tables import DECISIONS, copied_tables, kind_of
from agentapp.storage.engines import make_engine
from agentapp.storage.operator_models import Base
from agentapp.web.parts import Parts
from tests.support.commands import Agentapp, set_revision
from tests.support.databases import DATABASES
from tests.support.full_installations import FAR, Full, fill, rows_in, triggers_of
from tests.support.postgres import postgres_url
from tests.support.rounds import ROUNDS
from tests.support.server import clean_env
from tests.support.server_users import wait_for
from tests.support.stored_bytes import counted, kept
from tests.support.times import utc_now
from tests.support.turns import hurry
from tests.support.users import Person

COPIED = sum(decision == "copied" for decision in DECISIONS.values())
UNFINISHED = "agentapp: a copy into this database is not finished: run the same `agentapp db copy` again"


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Full:
    directory = tmp_path_factory.mktemp("full")
    shutil.copy(sqlite_template, directory / "full.sqlite3")
    url = f"sqlite:///{directory}/full.sqlite3"
    settings = Settings(instance=directory, database_url=url, secret_key="s" * 32, demo_delay=0.0)
    # The breaker that it opens stays open for as long as the tests take.
    return fill(create_app(replace(settings, breaker_cooldown=86_400.0, breaker_cooldown_max=86_400.0)))


@pytest.fixture
def source(settings: Settings) -> Path:
    return Path(settings.database_url.removeprefix("sqlite:///"))


@pytest.fixture
def full(filled: Full, source: Path) -> Full:
    """A copy of it in the place of the test's own database."""
    shutil.copy(filled.file, source)
    return filled


@contextmanager
def empty_database(kind: str, directory: Path) -> Iterator[str]:
    made = nullcontext(f"sqlite:///{directory}/to.sqlite3")
    with made if kind == "sqlite" else postgres_url() as url:
        yield url


@pytest.fixture(params=DATABASES)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that nobody has used. The test runs with each kind."""
    with empty_database(request.param, tmp_path) as url:
        yield url


def run(url: str, statement: str, **values: Any) -> list[Any]:
    engine = make_engine(url)
    try:
        with engine.connect().execution_options(agentapp_migrates=True) as connection:
            found = connection.execute(text(statement), values)
            rows = list(found) if found.returns_rows else []
            connection.commit()
            return rows
    finally:
        engine.dispose()


def assert_copied(result: Result) -> None:
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^\w+ +[\d,]+ +[\d,]+  equal$", result.stdout, re.M)) == COPIED
    assert "DIFFERENT" not in result.stdout


def refusal(result: Result) -> str:
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("agentapp: ")


def still_signed_in(app: Flask, full: Full) -> Person:
    """The same browser, at the server on the copy."""
    browser = app.test_client()
    browser.set_cookie("agentapp", full.cookie)
    return Person("ann", browser, full.csrf)


# --- what comes along -----------------------------------------------------------------------------


def test_there_and_back_again_nothing_has_changed(
    tmp_path: Path, agentapp: Agentapp, full: Full, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "Asia/Kolkata")  # where a time without a zone is another one
    before = rows_in(source)
    assert {name for name, rows in before.items() if not rows} == set(), "something is in every table"
    with postgres_url() as there:
        assert_copied(agentapp("db", "copy", str(source), there))
        assert_copied(agentapp("db", "copy", there, f"{tmp_path}/back.sqlite3"))
    before["workers"] = []
    after = rows_in(tmp_path / "back.sqlite3")
    for table, rows in before.items():
        assert after[table] == rows
    assert triggers_of(tmp_path / "back.sqlite3") == triggers_of(source)


def test_the_app_goes_on_with_the_copy(
    empty: str,
    make_app: Callable[..., Flask],
    settings: Settings,
    agentapp: Agentapp,
    full: Full,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_copied(agentapp("db", "copy", str(source), empty))
    app = make_app(wanted=replace(settings, database_url=empty))
    parts: Parts = app.extensions["agentapp"]
    ann = still_signed_in(app, full)
    for path, page in full.pages.items():
        assert without_nonces(ann.get(path).text) == without_nonces(page)
    assert full.chat in full.pages["/chat?q=xylophonist"], "the search has found it"
    refused = ann.send(full.tripped, "Hello again")
    assert (refused.status_code, refused.json["code"]) == (503, "breaker-open")
    assert counted(parts.db.engine) == kept(parts.db.engine) != {}
    ann.ask(full.chat, "one more, about zeppelins")
    numbers = run(empty, "SELECT number FROM turns WHERE session_id = :id ORDER BY number", id=full.chat)
    seqs = run(empty, "SELECT seq FROM messages WHERE session_id = :id ORDER BY seq", id=full.chat)
    assert ([n for (n,) in numbers], [n for (n,) in seqs]) == ([1, 2, 3], [1, 2, 3, 4, 5, 6])
    assert full.chat in ann.get("/chat?q=zeppelins").text
    assert full.chat in ann.get("/chat?q=xylophonist").text
    assert counted(parts.db.engine) == kept(parts.db.engine)
    ann.post(f"/chat/{full.tripped}/delete")
    assert counted(parts.db.engine) == kept(parts.db.engine)
    newest = run(empty, "SELECT max(id) FROM audit_log")[0][0]
    assert newest > FAR
    hurry(monkeypatch, parts)
    parts.start()
    wait_for(lambda: run(empty, "SELECT count(*) FROM live_turns")[0][0] == 0)
    ended = run(empty, "SELECT status FROM turns WHERE id = :id", id=full.interrupted)
    assert ended[0][0] == "interrupted"


def without_nonces(page: str) -> str:
    """What a page makes anew each time: the masked token of its forms, the keys of messages, times of day."""
    return re.sub(r'(content|value|nonce)="[\w.-]{20,}"', "", page)


def test_a_table_without_a_decision_cannot_be_forgotten() -> None:
    assert set(DECISIONS) == set(Base.metadata.tables)
    metadata = MetaData()
    Table("added_later", metadata, Column("id", LargeBinary, primary_key=True))
    with pytest.raises(KeyError, match="added_later"):
        copied_tables(metadata)
    with pytest.raises(TypeError, match="nobody has said how"):
        kind_of(metadata.tables["added_later"].c.id)


def test_every_number_that_postgresql_gives_is_beyond_those_that_were_copied(
    agentapp: Agentapp, full: Full, source: Path
) -> None:
    owned = (
        "SELECT table_name, column_name FROM information_schema.columns WHERE column_default LIKE 'nextval%'"
    )
    with postgres_url() as there:
        assert_copied(agentapp("db", "copy", str(source), there))
        found = run(there, owned)
        assert {table for table, _ in found} == {"audit_log", "search_entries"}
        for table, column in found:
            of = f"SELECT nextval(pg_get_serial_sequence('{table}', '{column}')), max({column}) FROM {table}"
            ((following, highest),) = run(there, of)
            assert following == highest + 1


# --- what is refused ------------------------------------------------------------------------------


def test_a_target_with_anything_in_it_is_refused_and_stays_as_it_is(
    empty: str, agentapp: Agentapp, full: Full, source: Path
) -> None:
    run(str(make_with_tables(empty)), "INSERT INTO setup_links VALUES ('d', '2020-01-01 00:00:00.000000')")
    for options in ((), ("--restart",)):
        said = refusal(agentapp("db", "copy", str(source), empty, *options))
        assert (
            said == "TO is not empty: it has rows in setup_links. Nothing was copied. Give an empty database."
        )
    assert [row[0] for row in run(empty, "SELECT digest FROM setup_links")] == ["d"]
    assert run(empty, "SELECT count(*) FROM users")[0][0] == 0


def make_with_tables(url: str) -> str:
    database_copy.migrate.upgrade(url)
    return url


def test_a_copy_into_itself_is_refused_under_whatever_name(
    tmp_path: Path, agentapp: Agentapp, migrated: Agentapp, source: Path
) -> None:
    (tmp_path / "link.sqlite3").symlink_to(source)
    with postgres_url() as there:
        make_with_tables(there)
        same = (str(source), f"{tmp_path}/link.sqlite3"), (there, f"{there}&application_name=x")
        for pair in same:
            assert refusal(agentapp("db", "copy", *pair)) == "FROM and TO are the same database."
        assert not has_marker(there)
    assert not has_marker(f"sqlite:///{source}")


def test_what_cannot_be_a_database_is_told_in_one_line_without_a_password(
    tmp_path: Path, agentapp: Agentapp, migrated: Agentapp, source: Path
) -> None:
    to = f"{tmp_path}/to.sqlite3"
    missing = refusal(agentapp("db", "copy", f"{tmp_path}/none.sqlite3", to))
    assert missing == f"FROM: there is no file {tmp_path}/none.sqlite3."
    assert refusal(agentapp("db", "copy", "mysql://x:secretword@h/d", to)).startswith(
        "FROM: must begin with 'post"
    )
    away = agentapp("db", "copy", str(source), "postgresql+psycopg://x:secretword@127.0.0.1:1/d")
    assert refusal(away).startswith("TO: connection")
    assert "secretword" not in away.output
    assert not Path(to).exists()


def test_a_source_of_another_schema_is_refused(
    tmp_path: Path, agentapp: Agentapp, full: Full, source: Path
) -> None:
    set_revision(f"sqlite:///{source}", "0001")
    said = refusal(agentapp("db", "copy", str(source), f"{tmp_path}/to.sqlite3"))
    assert said.startswith("FROM: the database is at revision 0001 and this agentapp needs")
    assert "run `agentapp db upgrade`" in said
    assert not (tmp_path / "to.sqlite3").exists()


def test_a_newer_schema_is_refused_also_if_this_agentapp_can_work_with_it(
    tmp_path: Path, agentapp: Agentapp, full: Full, source: Path
) -> None:
    """It may have columns that this one does not know, and would leave behind."""
    newer = "UPDATE alembic_version SET version_num = '0099'"
    run(f"sqlite:///{source}", newer)
    assert agentapp("user", "list").exit_code == 0
    said = refusal(agentapp("db", "copy", str(source), f"{tmp_path}/to.sqlite3"))
    assert said == "FROM: a newer agentapp has changed its schema. Copy it with that one."
    back = f"{tmp_path}/newer.sqlite3"
    run(make_with_tables(f"sqlite:///{back}"), newer)
    run(f"sqlite:///{source}", newer.replace("0099", schema.HEAD))
    said = refusal(agentapp("db", "copy", str(source), back))
    assert said == "TO: a newer agentapp has changed its schema. Give an empty database."


def test_a_source_that_a_server_uses_is_refused(
    tmp_path: Path, agentapp: Agentapp, full: Full, source: Path
) -> None:
    url, to = f"sqlite:///{source}", f"{tmp_path}/to.sqlite3"
    soon = (utc_now() + timedelta(seconds=20)).replace(tzinfo=None)
    run(url, "UPDATE live_turns SET lease_until = :t", t=soon)
    assert refusal(agentapp("db", "copy", str(source), to)).startswith("FROM: a message is being answered")
    just_now = utc_now().replace(tzinfo=None)
    run(url, "UPDATE workers SET seen_at = :t, pid = 4711", t=just_now)
    assert "a server runs on it (process 4711 on gone)" in refusal(agentapp("db", "copy", str(source), to))
    assert not Path(to).exists()


def test_a_server_that_starts_meanwhile_is_noticed_at_the_end(
    tmp_path: Path, agentapp: Agentapp, full: Full, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, to = f"sqlite:///{source}", f"sqlite:///{tmp_path}/to.sqlite3"
    compare = database_copy.DatabaseCopy.compare

    def and_start(copying: database_copy.DatabaseCopy) -> Iterator[Any]:
        run(url, "UPDATE workers SET seen_at = :t", t=utc_now().replace(tzinfo=None))
        yield from compare(copying)

    monkeypatch.setattr(database_copy.DatabaseCopy, "compare", and_start)
    assert "a server runs on it" in refusal(agentapp("db", "copy", str(source), to))
    assert has_marker(to)


# --- interrupted ----------------------------------------------------------------------------------


def has_marker(url: str) -> bool:
    engine = make_engine(url)
    try:
        return inspect(engine).has_table("unfinished_copy")
    finally:
        engine.dispose()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Batches of three rows, and Ctrl-C in the midst of one of them: its rows are sent, and not committed."""
    monkeypatch.setattr(database_copy, "BATCH_ROWS", 3)
    add_batch, left = filling.add_batch, [0]

    def add(*args: Any) -> Any:
        after = add_batch(*args)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return after

    monkeypatch.setattr(filling, "add_batch", add)
    return lambda batches: left.__setitem__(0, batches)


def interrupt(agentapp: Agentapp, *command: str) -> None:
    result = agentapp("db", "copy", *command)
    assert (result.exit_code, result.stderr) == (130, "interrupted: the same command goes on from here\n")


def test_an_interrupted_copy_goes_on_where_it_was(
    empty: str, tmp_path: Path, agentapp: Agentapp, full: Full, source: Path, interrupted: Any
) -> None:
    copied = []
    for batches in (1, 2, 7, 20):
        interrupted(batches)
        interrupt(agentapp, str(source), empty)
        copied.append(sum(run(empty, f"SELECT count(*) FROM {each.name}")[0][0] for each in copied_tables()))
        assert agentapp("user", "list").exit_code == 0, "the source is as it was"
    assert copied == sorted(set(copied)), "each time it came further"
    result = agentapp("db", "copy", str(source), empty)
    assert_copied(result)
    assert "going on with the copy" in result.stdout
    assert not has_marker(empty)
    back = f"{tmp_path}/back.sqlite3"
    interrupted(25)
    interrupt(agentapp, empty, back)
    assert_copied(agentapp("db", "copy", empty, back))
    assert {**rows_in(source), "workers": []} == rows_in(Path(back))
    assert triggers_of(Path(back)) == triggers_of(source)


def test_nothing_but_a_copy_of_the_same_uses_a_half_copied_database(
    empty: str,
    tmp_path: Path,
    agentapp: Agentapp,
    full: Full,
    source: Path,
    environ: dict[str, str],
    interrupted: Any,
) -> None:
    interrupted(9)
    interrupt(agentapp, str(source), empty)
    other = f"{tmp_path}/other.sqlite3"
    assert agentapp("user", "list").exit_code == 0
    environ["AGENTAPP_DATABASE_URL"] = make_with_tables(f"sqlite:///{other}")
    agentapp("user", "add", "zoe", "--password-stdin", stdin="a long enough password\n")
    said = refusal(agentapp("db", "copy", other, empty))
    assert said.startswith(f"TO has an unfinished copy of another database, sqlite:///{source}.")
    assert refusal(agentapp("db", "copy", empty, f"{tmp_path}/third.sqlite3")).startswith(
        "FROM: a copy into this"
    )
    environ["AGENTAPP_DATABASE_URL"] = empty
    for command in (("db", "upgrade"), ("user", "list"), ("cleanup",)):
        result = agentapp(*command)
        assert (result.exit_code, result.stderr.startswith(UNFINISHED)) == (2, True), result.output
    checked = agentapp("doctor")
    assert checked.exit_code == 1
    assert "a copy into this database is not finished" in checked.stdout
    assert_copied(agentapp("db", "copy", other, empty, "--restart"))
    assert agentapp("user", "list").stdout == "zoe\tdefault\tmember\n"


def test_what_has_changed_since_it_was_copied_is_told_and_a_restart_puts_it_right(
    empty: str, tmp_path: Path, agentapp: Agentapp, full: Full, source: Path, interrupted: Any
) -> None:
    interrupted(25)
    interrupt(agentapp, str(source), empty)
    url = f"sqlite:///{source}"
    run(url, "UPDATE tenants SET retain_sessions_days = 7 WHERE name = 'default'")
    run(url, "DELETE FROM audit_log WHERE id = (SELECT min(id) FROM audit_log)")
    result = agentapp("db", "copy", str(source), empty)
    assert result.exit_code == 1
    assert set(re.findall(r"^(\w+) .*  DIFFERENT$", result.stdout, re.M)) == {"tenants", "audit_log"}
    assert result.stderr.startswith("agentapp: The copy is not the same as FROM in audit_log, tenants:")
    assert has_marker(empty), "no server starts on it"
    assert_copied(agentapp("db", "copy", str(source), empty, "--restart"))
    back = tmp_path / "back.sqlite3"
    assert_copied(agentapp("db", "copy", empty, str(back)))
    assert {**rows_in(source), "workers": []} == rows_in(back)


def test_two_copies_into_one_database_do_not_mix(
    empty: str, agentapp: Agentapp, full: Full, source: Path, interrupted: Any
) -> None:
    interrupted(2)
    interrupt(agentapp, str(source), empty)
    one, two = (
        database_copy.DatabaseCopy(places.named("FROM", str(source)), places.named("TO", empty))
        for _ in range(2)
    )
    for each in (one, two):
        assert each.begin(restart=False)
    next(one.copy())
    with pytest.raises(Exception, match="another copy into the same database is under way"):
        next(two.copy())
    for each in (one, two):
        each._source.engine.dispose()
        each._target.engine.dispose()
    assert_copied(agentapp("db", "copy", str(source), empty))


def test_a_server_that_is_restarted_meanwhile_interrupts_it_too(
    agentapp: Agentapp, full: Full, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_batch = filling.add_batch

    def and_lose_it(connection: Any, *rest: Any) -> Any:
        after = add_batch(connection, *rest)
        if rest[0].name == "messages":
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return after

    with postgres_url() as there:
        monkeypatch.setattr(filling, "add_batch", and_lose_it)
        lost = refusal(agentapp("db", "copy", str(source), there))
        assert lost.startswith("TO: terminating connection due to administrator command")
        monkeypatch.undo()
        result = agentapp("db", "copy", str(source), there)
        assert_copied(result)
        assert "going on with the copy" in result.stdout


def test_in_a_terminal_there_is_a_bar(tmp_path: Path, full: Full, source: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AS_IT_IS, "db", "copy", str(source), f"{tmp_path}/to.sqlite3"]
    with closing_descriptors(ours, theirs):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=clean_env(), timeout=60)
        shown = os.read(ours, 100_000).decode()
    assert done.returncode == 0, done.stdout
    assert re.search(r"copying  \[#+\]  (\d+)/\1  turn_events", shown), shown


@contextmanager
def closing_descriptors(*descriptors: int) -> Iterator[None]:
    try:
        yield
    finally:
        for each in descriptors:
            os.close(each)


@pytest.mark.parametrize("kind", DATABASES)
def test_the_command_can_be_ended_and_killed_at_any_moment(
    kind: str, tmp_path: Path, settings: Settings, agentapp: Agentapp, full: Full, source: Path
) -> None:
    """As people do it: with a signal, to the process, whatever it is about."""
    with empty_database(kind, tmp_path) as there:
        slowly = [sys.executable, "-c", SLOWLY, "db", "copy", str(source), there]
        for n in range(2 * ROUNDS):
            number = signal.SIGINT if n % 2 == 0 else signal.SIGKILL
            with subprocess.Popen(
                slowly, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env()
            ) as child:
                assert child.stdout is not None
                for _ in range(2 + 6 * n % 11):
                    child.stdout.readline()
                child.send_signal(number)
                _, err = child.communicate(timeout=60)
            if child.returncode == 0:
                break
            assert child.returncode in (130, -signal.SIGKILL), err
        if has_marker(there):
            assert_copied(agentapp("db", "copy", str(source), there))
        back = tmp_path / "back.sqlite3"
        assert_copied(agentapp("db", "copy", there, str(back)))
        assert {**rows_in(source), "workers": []} == rows_in(back)


AS_IT_IS = "from agentapp.cli import main; main()"
SLOWLY = f"from agentapp.storage.copying import database_copy; database_copy.BATCH_ROWS = 2; {AS_IT_IS}"


# --- how much memory it takes ---------------------------------------------------------------------


def test_a_batch_is_bounded_by_rows_and_by_what_is_in_them() -> None:
    many = list(database_copy.batches(("x",) for _ in range(5_000)))
    assert [len(batch) for batch in many] == [2_000, 2_000, 1_000]
    heavy = list(database_copy.batches((1, "x" * 3_000_000, None) for _ in range(5)))
    assert [len(batch) for batch in heavy] == [2, 2, 1]
    assert list(database_copy.batches(())) == []
