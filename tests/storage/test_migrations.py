"""The migrations make exactly the tables of the models, on both databases, once, whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, select, text
from sqlalchemy.orm import Session

from agentapp.errors import SettingError, StartError, StorageUnavailable
from agentapp.events import TurnStarted, text_of, unpacked
from agentapp.isolation import ThreadBinder, UserScope
from agentapp.server import resources
from agentapp.storage import migrate, schema
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.engines import make_engine
from agentapp.storage.models import Base, LiveTurn, Message, Turn
from agentapp.web.steps import steps_of
from tests.support.commands import set_revision
from tests.support.forked_agentapp import ForkedAgentapp
from tests.support.postgres import postgres_url
from tests.support.server import clean_env
from tests.support.stored_bytes import counted, kept

HEAD, AFTER_HEAD = schema.HEAD, f"{int(schema.HEAD) + 1:04}"


def test_migrated_database_does_not_differ_from_the_models(url: str, engine: Engine) -> None:
    migrate.upgrade(url)
    with engine.connect() as connection:
        opts: dict[str, Any] = {"compare_server_default": True, "include_object": _is_compared}
        if engine.dialect.name == "postgresql":
            opts["include_object"] = _is_no_version
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, Base.metadata) == []


def _is_compared(item: Any, name: str | None, kind: str, reflected: bool, other: object) -> bool:
    """On SQLite the search uses a full-text table, which is no model, in place of PostgreSQL's index."""
    if name == "ix_search_entries_words" or str(name).startswith("search_index"):
        return False
    return _is_no_version(item, name, kind, reflected, other)


def _is_no_version(item: Any, name: str | None, kind: str, reflected: bool, other: object) -> bool:
    """What the schema says about itself is no model either: code that is older and newer must read it."""
    return name != "schema_compatibility"


def test_migrated_database_has_the_constraints_alembic_does_not_compare(url: str, engine: Engine) -> None:
    """Checks, partial indexes and what deleting does, against the same models without migrations."""
    migrate.upgrade(url)
    migrated = _details(engine)
    with engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert migrated == _details(engine)
    assert migrated["turns"]["checks"], "nothing was compared"


def test_every_constraint_has_a_name_by_which_a_later_migration_can_change_it(
    url: str, engine: Engine
) -> None:
    migrate.upgrade(url)
    found = inspect(engine)
    for table in Base.metadata.tables:
        named = [
            found.get_pk_constraint(table),
            *found.get_foreign_keys(table),
            *found.get_unique_constraints(table),
            *found.get_check_constraints(table),
        ]
        assert [constraint for constraint in named if not constraint["name"]] == []


def _details(engine: Engine) -> dict[str, Any]:
    found = inspect(engine)
    return {
        table: {
            "columns": [
                (c["name"], str(c["type"]), c["nullable"]) for c in _sorted(found.get_columns(table))
            ],
            "checks": sorted((c["name"], c["sqltext"]) for c in found.get_check_constraints(table)),
            "indexes": [
                (i["name"], i["column_names"], i["unique"], str(_where(i)))
                for i in _sorted(found.get_indexes(table))
                if "duplicates_constraint" not in i
            ],
            "references": sorted(
                (f["constrained_columns"], f["referred_table"], f["options"].get("ondelete", ""))
                for f in found.get_foreign_keys(table)
            ),
            "unique": sorted(u["column_names"] for u in found.get_unique_constraints(table)),
        }
        for table in Base.metadata.tables
    }


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: item["name"])


def _where(index: Any) -> object:
    options = index.get("dialect_options", {})
    return options.get("sqlite_where", options.get("postgresql_where"))


def test_head_is_the_newest_shipped_revision_and_revisions_are_numbered() -> None:
    scripts = ScriptDirectory.from_config(migrate.config_for(None))
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert scripts.get_heads() == [schema.HEAD]
    assert revisions == sorted(revisions, reverse=True)
    assert all(len(revision) == 4 and revision.isdigit() for revision in revisions)


def test_upgrading_twice_changes_nothing(url: str, engine: Engine) -> None:
    migrate.upgrade(url)
    migrate.upgrade(url)
    assert schema.schema_problem(engine) is None


SAID = "Here: 💥 é\u0301 \ufffd and\n\nmore"
SUM = {"kind": "tool", "name": "calculate", "output": "42", "failed": False, "limited": False}
STEPS: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"kind": "handed_over", "from": "triage", "to": "maths", "task": "add “these” up"}],
    [
        {"kind": "handed_over", "from": "triage", "to": "maths", "task": "add up"},
        {**SUM, "input": json.dumps({"expression": "6*7 💥", "b": [1.5, None]}, ensure_ascii=False)},
        {**SUM, "input": '{"text": "x' + "x" * 3989, "output": "", "failed": True, "limited": True},
        {"kind": "handed_over", "from": "maths", "to": "triage", "task": "back"},
        {**SUM, "input": "{}", "output": "y" * 4000, "failed": True},
    ],
)


def _upgrade_to(url: str, revision: str) -> None:
    with schema.migrating(url) as connection:
        command.upgrade(migrate.config_for(connection), revision)


def _at_0002(engine: Engine, turns: list[dict[str, Any]]) -> None:
    """Two people's chats as the release before kept them: every turn was asked something, some answered."""
    turns = [{**one, "steps": json.dumps(one["steps"])} for one in turns]
    answered = [one for one in turns if one["reply"] is not None]
    values = {
        "sessions (id, tenant_id, user_id, title, agent, created_at, updated_at)"
        " VALUES (:id, :who, :who, 'a title', :agent, '2026-01-01', '2026-01-01')": [
            {"id": "lone", "who": "u", "agent": ""},
            {"id": "long", "who": "u", "agent": "maths"},
            {"id": "busy", "who": "v", "agent": "memory"},
            {"id": "none", "who": "v", "agent": "maths"},
        ],
        "turns (id, tenant_id, user_id, session_id, request_id, idempotency_key, status, agent, activity,"
        " input_tokens, output_tokens, model_calls, started_at, lease_until)"
        " VALUES (:id, :who, :who, :chat, 'r', :id, :status, 'maths', :steps, 7, 8, 9, :at, :at)": turns,
        "messages (id, tenant_id, user_id, session_id, turn_id, seq, role, content, created_at)"
        " VALUES ('q' || :id, :who, :who, :chat, :id, 2 * :seq + 1, 'user', :asked, :at)": turns,
        "messages (id, tenant_id, user_id, session_id, turn_id, seq, role, content, created_at)"
        " VALUES ('a' || :id, :who, :who, :chat, :id, 2 * :seq + 2, 'assistant', :reply, :at)": answered,
    }
    with engine.begin() as connection:
        for who in "uv":
            _insert_person(connection, who)
        for statement, rows in values.items():
            connection.execute(text(f"INSERT INTO {statement}"), rows)


def _old_turns() -> list[dict[str, Any]]:
    """Of three chats, one after the other and all mixed up, for their ids are in no order."""
    made = []
    for chat, who, count in (("lone", "u", 1), ("long", "u", 7), ("busy", "v", 3)):
        for n in range(count):
            name = f"{'zebra'[n % 5]}{n}-{chat}"
            running = chat == "busy" and n == 2
            made.append(
                {
                    "id": name,
                    "who": who,
                    "chat": chat,
                    "status": "running" if running else ("completed", "failed")[n % 2],
                    "steps": [] if running else STEPS[n % 3],
                    "seq": n,
                    "at": f"2026-01-01 00:00:{n:02}",
                    "asked": f"asked {name}",
                    "reply": None if running or n % 2 else f"{SAID} {name}",
                }
            )
    return made


def test_what_was_said_before_there_were_versions_can_be_told_as_it_was(url: str, engine: Engine) -> None:
    _upgrade_to(url, "0002")
    turns = _old_turns()
    _at_0002(engine, turns)
    migrate.upgrade(url)
    with Session(engine.execution_options(agentapp_migrates=True)) as db:  # everybody's
        kept = {turn.id: turn for turn in db.scalars(select(Turn))}
        said = {(one.turn_id, one.role): one.content for one in db.scalars(select(Message))}
        (live,) = db.scalars(select(LiveTurn))
    assert kept.keys() == {turn["id"] for turn in turns}
    for turn in turns:
        now, number = kept[turn["id"]], turn["seq"] + 1
        assert (now.number, now.follows, now.status) == (number, number - 1, turn["status"])
        assert (now.input_tokens, now.output_tokens, now.model_calls) == (7, 8, 9)
        assert (now.cache_read_tokens, now.cache_write_tokens) == (0, 0)
        assert said[now.id, "user"] == turn["asked"]
        assert said.get((now.id, "assistant")) == turn["reply"]
        assert list(steps_of(unpacked(now.log, "", ""))) == turn["steps"]
        first, *others = unpacked(now.log, turn["asked"], turn["reply"] or "")
        assert first == TurnStarted(now.id, turn["chat"], turn["asked"])
        assert text_of(others) == (turn["reply"] or "")
    goes_to = {turn.session_id: turn.next_agent for turn in kept.values() if turn.next_agent}
    assert goes_to == {"long": "maths", "busy": "memory"}
    last = max((turn for turn in kept.values() if turn.session_id == "long"), key=lambda turn: turn.number)
    assert last.next_agent == "maths"
    assert (live.turn_id, live.session_id, live.user_id) == ("b2-busy", "busy", "v")
    assert live.lease_until < datetime.now(UTC)
    assert not live.stop_asked


def test_a_worker_of_the_version_before_can_go_on_writing_turns(url: str, engine: Engine) -> None:
    """It knows nothing of the columns for what was cached."""
    migrate.upgrade(url)
    with engine.begin() as connection:
        _insert_person(connection, "u")
        for row in (
            "sessions (id, tenant_id, user_id, title, created_at, updated_at)"
            " VALUES ('s', 'u', 'u', 'title', '2026-01-01', '2026-01-01')",
            "turns (id, tenant_id, user_id, session_id, request_id, number, follows, status, agent,"
            " next_agent, log, input_tokens, output_tokens, model_calls, started_at)"
            " VALUES ('t', 'u', 'u', 's', 'r', 1, 0, 'running', '', '', '[]', 0, 0, 0, '2026-01-01')",
        ):
            connection.execute(text(f"INSERT INTO {row}"))
    with Session(engine.execution_options(agentapp_migrates=True)) as db:  # everybody's
        (turn,) = db.scalars(select(Turn))
    assert (turn.cache_read_tokens, turn.cache_write_tokens) == (0, 0)


def test_more_turns_than_are_read_at_once_all_get_their_number_and_their_log(
    url: str, engine: Engine
) -> None:
    _upgrade_to(url, "0002")
    (turn,), count = _old_turns()[:1], 2_500
    many = [
        {**turn, "id": f"{n * 7919 % count:04}", "seq": n, "at": f"2026-01-01 00:00:00.{n:06}"}
        for n in range(count)
    ]
    _at_0002(engine, many)
    migrate.upgrade(url)
    with Session(engine.execution_options(agentapp_migrates=True)) as db:  # everybody's
        kept = db.execute(select(Turn.id, Turn.number, Turn.log).order_by(Turn.number)).all()
    assert [(id, number) for id, number, _ in kept] == [(one["id"], one["seq"] + 1) for one in many]
    assert all(log[0][1]["turn_id"] == id and log[-1] == len(turn["reply"]) for id, _, log in kept)


def test_a_tool_call_from_before_there_were_limits_was_not_limited(url: str, engine: Engine) -> None:
    _upgrade_to(url, "0002")
    old = [{name: value for name, value in {**SUM, "input": "{}"}.items() if name != "limited"}]
    turn = {**_old_turns()[0], "steps": old}
    _at_0002(engine, [turn])
    migrate.upgrade(url)
    with Session(engine.execution_options(agentapp_migrates=True)) as db:  # everybody's
        (log,) = db.scalars(select(Turn.log))
    assert steps_of(unpacked(log, "", "")) == ({**SUM, "input": "{}"},)


@pytest.mark.parametrize("given", ['{"a": NaN}', '{"a": -Infinity}', "[1, 2]", "null", "cut"])
def test_what_a_model_gave_a_tool_is_shown_as_it_was_whatever_it_was(
    url: str, engine: Engine, given: str
) -> None:
    _upgrade_to(url, "0002")
    turn = {**_old_turns()[0], "steps": [{**SUM, "input": given}]}
    _at_0002(engine, [turn])
    migrate.upgrade(url)
    with Session(engine.execution_options(agentapp_migrates=True)) as db:  # everybody's
        (log,) = db.scalars(select(Turn.log))
    assert steps_of(unpacked(log, "", "")) == ({**SUM, "input": given},)


def test_what_was_said_before_there_was_an_index_is_found(
    url: str, engine: Engine, next_revision: Callable[..., str]
) -> None:
    """Newest last, in several batches, of everybody; and again after a way down and up."""
    shipped = resources.migrations() / "versions" / "0005_search_index.py"
    shipped.write_text(shipped.read_text().replace("BATCH = 500", "BATCH = 4"))
    _upgrade_to(url, "0002")
    turns = _old_turns()
    _at_0002(engine, turns)
    _upgrade_to(url, "0004")
    for _ in range(2):
        _upgrade_to(url, "0005")
        with engine.connect().execution_options(agentapp_migrates=True) as connection:
            places = connection.scalars(
                text(
                    "SELECT messages.created_at FROM search_entries JOIN messages"
                    " ON messages.id = search_entries.message_id ORDER BY search_entries.id"
                )
            ).all()
        assert places == sorted(places)
        assert len(places) == sum(1 + (turn["reply"] is not None) for turn in turns)
        with schema.migrating(url) as connection:
            command.downgrade(migrate.config_for(connection), "0004")
        assert not [name for name in inspect(engine).get_table_names() if name.startswith("search")]
    _upgrade_to(url, schema.HEAD)
    for who, chats in (("u", {"lone", "long"}), ("v", {"busy"})):
        user = UserScope(request_id="r", tenant_id=who, user_id=who)
        assert _found(url, user, "asked zebra") == set()
        assert _found(url, user, "ask") == chats, "messages"
        assert _found(url, user, "more and") == chats - {"none"}, "answers"
        assert _found(url, user, "title") >= chats, "titles"


def test_what_was_kept_before_it_was_counted_counts(url: str, engine: Engine) -> None:
    _upgrade_to(url, "0002")
    _at_0002(engine, _old_turns())
    migrate.upgrade(url)
    assert counted(engine) == kept(engine)
    assert set(counted(engine)) == {"u", "v"}
    with engine.execution_options(agentapp_migrates=True).begin() as connection:
        connection.execute(text("DELETE FROM sessions"))
    assert counted(engine) == kept(engine) == {}


def _found(url: str, user: UserScope, words: str) -> set[str]:
    db = Database(url, ThreadBinder())
    with db._binder.bound(user):
        chats, _ = Chats(db).page(user, words=words)
    db.close()
    return {chat.id for chat in chats}


def test_sqlite_without_full_text_search_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/test.sqlite3"
    monkeypatch.setattr(schema, "_FULL_TEXT_MODULE", "a module that no SQLite has")
    with pytest.raises(StartError, match="built without FTS5"):
        migrate.upgrade(url)
    with pytest.raises(StartError, match="built without FTS5"):
        schema.require_usable(url)


def test_directory_with_a_percent_sign_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(resources.migrations(), tmp_path / "100%(here)s")
    monkeypatch.setattr(resources, "migrations", lambda: tmp_path / "100%(here)s")
    migrate.upgrade(f"sqlite:///{tmp_path}/test.sqlite3")
    schema.require_usable(f"sqlite:///{tmp_path}/test.sqlite3")


def test_missing_schema_says_what_to_do(url: str, engine: Engine) -> None:
    assert schema.schema_problem(engine) == schema.MISSING
    assert "run `agentapp db upgrade`" in schema.MISSING


def test_looking_for_a_missing_file_does_not_make_it(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path}/none.sqlite3")
    assert schema.schema_problem(engine) == schema.MISSING
    assert list(tmp_path.iterdir()) == []


def test_older_schema_says_what_to_do(url: str, engine: Engine, next_revision: Callable[..., str]) -> None:
    migrate.upgrade(url)
    next_revision("pass")
    problem = schema.schema_problem(engine)
    assert problem is not None
    assert f"at revision {HEAD}" in problem
    assert f"needs {AFTER_HEAD}" in problem
    assert "run `agentapp db upgrade`" in problem
    migrate.upgrade(url)
    assert schema.schema_problem(engine) is None


def test_newer_schema_is_neither_used_nor_migrated(url: str, engine: Engine) -> None:
    migrate.upgrade(url)
    set_revision(url, "0099")
    problem = schema.schema_problem(engine)
    assert problem is not None
    assert "newer agentapp" in problem
    with pytest.raises(StartError, match="update agentapp"):
        migrate.upgrade(url)


def test_failing_migration_leaves_nothing_behind(
    url: str, engine: Engine, next_revision: Callable[..., str]
) -> None:
    """Not even of the revision before it, which had succeeded."""
    next_revision("op.create_table('half', sa.Column('id', sa.Integer())); op.execute('SELECT no_such()')")
    with pytest.raises(StartError, match=r"cannot migrate the database: .*no_such"):
        migrate.upgrade(url)
    assert inspect(engine).get_table_names() == []
    assert schema.schema_problem(engine) == schema.MISSING


def test_altering_a_table_keeps_the_rows_that_refer_to_it(
    url: str, engine: Engine, next_revision: Callable[..., str]
) -> None:
    migrate.upgrade(url)
    _insert_login(engine)
    next_revision(
        "exec(\"with op.batch_alter_table('users') as t: t.alter_column('role', type_=sa.Text())\")"
    )
    migrate.upgrade(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM logins")) == 1


def test_migration_that_would_leave_rows_referring_to_nothing_is_undone(
    tmp_path: Path, next_revision: Callable[..., str]
) -> None:
    """SQLite only: while it migrates, its own checks are off. PostgreSQL refuses by itself."""
    url = f"sqlite:///{tmp_path}/test.sqlite3"
    engine = make_engine(url)
    migrate.upgrade(url)
    _insert_login(engine)
    next_revision("op.execute('DELETE FROM users')")
    with pytest.raises(StartError, match="a row of logins would refer to nothing"):
        migrate.upgrade(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM users")) == 1
    engine.dispose()


def upgrading(url: str, directory: Path, number: int = 0) -> ForkedAgentapp:
    """A process that migrates. What it says is in output-0, output-1, ..."""
    env = clean_env(AGENTAPP_DATABASE_URL=url)
    log = directory / f"output-{number}"
    return ForkedAgentapp("db", "upgrade", directory=directory, log=log, env=env)


def test_eight_processes_at_once_migrate_once(url: str, engine: Engine, tmp_path: Path) -> None:
    processes = [upgrading(url, tmp_path, number) for number in range(8)]
    assert [process.wait(120) for process in processes] == [0] * 8
    answers = [(tmp_path / f"output-{number}").read_text() for number in range(8)]
    assert answers == [f"the database is at revision {schema.HEAD}\n"] * 8
    assert schema.schema_problem(engine) is None


def test_second_migration_waits_for_the_first(url: str, engine: Engine, tmp_path: Path) -> None:
    process = None
    with schema.migrating(url) as connection:
        process = upgrading(url, tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # which is much longer than it would need
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text(f"INSERT INTO alembic_version VALUES ('{schema.HEAD}')"))
    assert process.wait(60) == 0
    assert inspect(engine).get_table_names() == ["alembic_version"]


def test_file_that_is_no_database_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "test.sqlite3").write_bytes(b"this is not a database" * 100)
    url = f"sqlite:///{tmp_path}/test.sqlite3"
    with pytest.raises(StartError, match=r"^cannot migrate the database: file is not a database$"):
        migrate.upgrade(url)
    with pytest.raises(StorageUnavailable, match=r"^cannot use the database: file is not a database$"):
        schema.require_usable(url)


@pytest.mark.parametrize("url", ["postgresql+psycopg://host:port/db", "postgresql+psycopg://[::1/db"])
def test_url_that_makes_no_sense_is_said_plainly(url: str) -> None:
    with pytest.raises(SettingError, match=r"^AGENTAPP_DATABASE_URL: is not a database URL$"):
        migrate.upgrade(url)


def test_missing_driver_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingError, match=r"needs psycopg: install agentapp with its extra postgres$"):
        migrate.upgrade("postgresql+psycopg://nobody@127.0.0.1:1/none")


def test_a_database_that_there_is_not_is_not_waited_for() -> None:
    with postgres_url() as url, pytest.raises(StartError, match=r'database ".*_not" does not exist'):
        migrate.upgrade(f"{url.partition('?')[0]}_not?{url.partition('?')[2]}")


def test_server_that_is_away_is_said_plainly() -> None:
    with pytest.raises(StorageUnavailable, match=r"^cannot reach the database: .*$"):
        migrate.upgrade("postgresql+psycopg://nobody@127.0.0.1:1/none")


def _insert_person(connection: Connection, name: str) -> None:
    """In a tenant of the same name."""
    for row in (
        f"tenants (id, name, created_at) VALUES ('{name}', '{name}', '2026-01-01')",
        "users (id, tenant_id, name, password_hash, role, created_at)"
        f" VALUES ('{name}', '{name}', '{name}', 'x', 'member', '2026-01-01')",
    ):
        connection.execute(text(f"INSERT INTO {row}"))


def _insert_login(engine: Engine) -> None:
    with engine.begin() as connection:
        _insert_person(connection, "u")
        row = "logins (digest, user_id, created_at, expires_at) VALUES ('d', 'u', '2026-01-01', '2026-01-02')"
        connection.execute(text(f"INSERT INTO {row}"))


def test_a_current_database_is_not_migrated_and_alembic_is_not_even_loaded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(url)
    monkeypatch.setitem(sys.modules, "alembic", None)  # to import it is an error
    migrate.upgrade(url)
