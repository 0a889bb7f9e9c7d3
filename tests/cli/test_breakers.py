"""`agentapp breakers`: what an operator sees of the guardrails, and what one sets is so in every worker."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from flask import Flask
from sqlalchemy import Engine, event, text

from agentapp.agents.loop import Limits
from agentapp.cli import breakers, main
from agentapp.config import Settings
from agentapp.guardrails.breaker import Breaker
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.operator import BreakerAdmin, BreakerRow
from agentapp.guardrails.policies import longest_turn
from agentapp.isolation import RequestScope, UserScope
from agentapp.storage.breakers import SqlBreakerStore
from agentapp.storage.engines import make_engine
from agentapp.storage.values import User
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.server.test_load import PASSWORD as SERVED_PASSWORD
from tests.server.test_load import add_users
from tests.support.admin_rows import audited, ids_of
from tests.support.app_inspection import sql
from tests.support.commands import Agentapp
from tests.support.databases import DATABASES, migrated
from tests.support.http_client import Visitor
from tests.support.server import clean_env, server
from tests.support.users import PASSWORD, Person, person

SOMEBODY = RequestScope(request_id="test")
Change = Callable[[Breaker, float], Breaker]

FIELDS = {
    "scope": str,
    "id": str,
    "name": str,
    "state": str,
    "failures": int,
    "trips": int,
    "opened_at": (str, type(None)),
    "retry_after": (float, type(None)),
    "cooldown": float,
    "probing": bool,
    "used": (int, float),
    "limit": (int, float, type(None)),
    "unit": str,
    "reserved": (int, float),
    "running": int,
    "rate_used": int,
    "tools": dict,
    "updated_at": str,
}


def fail(breaker: Breaker, now: float, times: int = 3) -> Breaker:
    for _ in range(times):
        breaker = breaker.failed(breaker.generation, now)
    return breaker


STATES: dict[str, Change] = {
    "closed": lambda b, now: fail(b, now, 1),
    "open": fail,
    "half-open": lambda b, now: fail(b, now - 3600),
    "forced-open": lambda b, now: b.force("open"),
    "forced-closed": lambda b, now: b.force("closed"),
}


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest, settings: Settings) -> Iterator[str]:
    """SQLite alone, unless a test asks for `both_databases`."""
    with migrated(request.param, settings) as url:
        yield url


both_databases = pytest.mark.parametrize("database_url", DATABASES, indirect=True)


@pytest.fixture
def app(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> Flask:
    return make_app(None, replace(settings, database_url=database_url))


@pytest.fixture
def agentapp(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agentapp:
    monkeypatch.chdir(tmp_path)
    for name in set(os.environ) - set(clean_env()):
        monkeypatch.delenv(name)

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(main, ["breakers", *args], env={"AGENTAPP_DATABASE_URL": database_url})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def put(parts: Parts, key: Key, change: Change, now: float | None = None) -> None:
    at = time.time() if now is None else now

    def changed(cell: Cell) -> Cell:
        return replace(cell, breaker=change(cell.breaker, at))

    parts.turns.kit.guardrails.registry.update(key, changed)


def listed(agentapp: Agentapp, *options: str) -> list[dict[str, Any]]:
    result = agentapp("list", "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{row['scope']}:{row['id']}": row for row in rows}


def added(parts: Parts, name: str) -> User:
    with parts.binder.bound(SOMEBODY):
        return parts.accounts.add(name, PASSWORD)


def pause(ann: Person, chat: str) -> None:
    """Three failures in a row: the chat is paused, by itself."""
    for _ in range(3):
        assert ann.send(chat, "/fail").status_code == 502
    assert ann.send(chat, "hello").json["code"] == "breaker-open"


@pytest.mark.parametrize("command", ["", "list", "reset", "force"])
def test_each_command_explains_itself(agentapp: Agentapp, command: str) -> None:
    result = agentapp(*command.split(), "--help")
    assert result.exit_code == 0
    first = result.stdout.split("\n\n")[1].strip()
    assert len(first) > 8
    assert first.endswith(".")


@both_databases
def test_list_with_nothing_to_tell_says_so_in_one_line(app: Flask, agentapp: Agentapp) -> None:
    assert agentapp("list").stdout == "Every breaker is closed, and none has counted a failure.\n"
    assert agentapp("list", "--all").stdout == "There are no breakers yet.\n"
    assert listed(agentapp) == listed(agentapp, "--all") == []
    ann = person(app, "ann")
    ann.ask(ann.new_chat(), "hello")
    assert agentapp("list").stdout.count("\n") == 1
    assert listed(agentapp) == []
    assert len(listed(agentapp, "--all")) > 3


@both_databases
def test_list_shows_a_paused_chat_with_its_owner_and_not_its_title(app: Flask, agentapp: Agentapp) -> None:
    ann = person(app, "ann")
    chat = ann.new_chat()
    pause(ann, chat)
    ann.post(f"/chat/{chat}/rename", title="my divorce")
    rows = by_key(listed(agentapp))
    assert {row["scope"] for row in rows.values()} == {"session", "user"}
    found = rows[f"session:{chat}"]
    assert {name: found[name] for name in ("name", "state", "failures", "trips", "probing")} == {
        "name": "ann",
        "state": "open",
        "failures": 3,
        "trips": 1,
        "probing": False,
    }
    assert 20 < found["retry_after"] <= found["cooldown"] <= 30
    assert abs(datetime.fromisoformat(found["opened_at"]).timestamp() - time.time()) < 60
    for output in (agentapp("list"), agentapp("list", "--json"), agentapp("list", "--all")):
        assert "divorce" not in output.stdout


@pytest.mark.parametrize("state", STATES)
def test_list_tells_the_state_at_this_moment(parts: Parts, agentapp: Agentapp, state: str) -> None:
    put(parts, Key("session", "s" * 22), STATES[state])
    (row,) = listed(agentapp)
    assert row["state"] == state
    assert (row["retry_after"] is not None) == (state == "open")
    assert (row["opened_at"] is not None) == (state in ("open", "half-open"))
    assert agentapp("list").stdout.splitlines()[1].split()[3] == state


def test_a_probe_under_way_is_told_until_its_lease_is_over(parts: Parts, agentapp: Agentapp) -> None:
    for id, ago in (("a" * 22, 5.0), ("b" * 22, longest_turn(parts.settings) + 5)):
        put(parts, Key("session", id), lambda b, now: fail(b, now - 3600).admit(now), time.time() - ago)
    rows = by_key(listed(agentapp))
    assert [rows[f"session:{id * 22}"]["probing"] for id in "ab"] == [True, False]


@both_databases
def test_json_has_every_field_in_its_type(app: Flask, agentapp: Agentapp) -> None:
    ann = person(app, "ann", tenant="acme")
    chat = ann.new_chat()
    ann.ask(chat, "what is 2 + 3?")
    app.extensions["agentapp"].turns.kit.guardrails.count_succeeded()
    rows = listed(agentapp, "--all")
    for row in rows:
        assert list(row) == list(FIELDS)
        assert [name for name, kind in FIELDS.items() if not isinstance(row[name], kind)] == []
        assert datetime.fromisoformat(row["updated_at"]).utcoffset() is not None
    kinds = {row["scope"]: row for row in rows}
    assert set(kinds) == {
        "session",
        "user",
        "tenant",
        "provider",
        "login-name",
        "login-address",
        "login-attempts",
        "new-chats",
    }
    session, user, tenant = kinds["session"], kinds["user"], kinds["tenant"]
    assert (session["unit"], session["limit"], session["rate_used"]) == ("tokens", 1_000_000, 1)
    assert session["used"] > 0
    assert session["tools"] == {"calculate": 1}
    assert (user["name"], user["unit"], user["limit"]) == ("ann", "usd", 5.0)
    assert (tenant["name"], tenant["unit"], tenant["limit"]) == ("acme", "usd", 500.0)
    assert {(row["running"], row["reserved"]) for row in rows} == {(0, 0)}


def test_what_is_running_and_reserved_is_told(parts: Parts, app: Flask, agentapp: Agentapp) -> None:
    ann = added(parts, "ann")
    user = UserScope(request_id="r", tenant_id=ann.tenant_id, user_id=ann.id)
    scope = user.within(parts.chats.create(user).id)
    put(parts, Key("provider", "demo"), fail)
    Turn.begin(replace(parts.turns.kit, limits=Limits(tokens=1_500)), scope, NewMessage("Hello"))
    found = {row["scope"]: row for row in listed(agentapp, "--all")}
    running = {name: found[name]["running"] for name in ("session", "user", "tenant", "provider")}
    assert running == {"session": 1, "user": 1, "tenant": 1, "provider": 1}
    assert found["session"]["reserved"] == 1_500


def test_the_table_is_aligned_and_says_what_is_used(parts: Parts, app: Flask, agentapp: Agentapp) -> None:
    ann = added(parts, "ann")
    put(parts, Key("user", ann.id), fail)
    put(parts, Key("session", "s" * 22), fail)
    put(parts, Key("provider", "demo"), STATES["forced-open"])
    registry = parts.turns.kit.guardrails.registry
    registry.update(Key("session", "s" * 22), lambda c: replace(c, budget=c.budget.charge(1234, time.time())))
    registry.update(Key("user", ann.id), lambda c: replace(c, budget=c.budget.charge(1_230_000, time.time())))
    head, *lines = agentapp("list").stdout.splitlines()
    columns = ["SCOPE", "ID", "NAME", "STATE", "FAILURES", "TRIPS", "TRY AGAIN IN", "USED"]
    starts = [head.index(column) for column in columns]
    cut = [
        [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        for line in lines
    ]
    assert all(line[start - 2 : start] == "  " for line in lines for start in starts[1:])
    assert [row[:2] + row[2:6] + row[7:] for row in cut] == [
        ["provider", "demo", "-", "forced-open", "0", "0", "-"],
        ["session", "s" * 22, "-", "open", "3", "1", "1,234 tokens of 1,000,000 tokens"],
        ["user", ann.id, "ann", "closed", "3", "0", "$1.23 of $5.00"],
    ]
    waits = [row[6] for row in cut]
    assert (waits[0], waits[2]) == ("-", "-")
    minutes, seconds = waits[1].split(":")
    assert 20 < int(minutes) * 60 + int(seconds) <= 30


def test_a_list_longer_than_a_block_stays_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakers, "ROWS_ALIGNED_TOGETHER", 2)
    row = BreakerRow(
        *("session", "a", "", "open", 1, 1, None, None, 0.0, False, 0, None, "tokens", 0, 0, 0, {}, "")
    )
    lines = list(breakers.table_lines([replace(row, id="a" * 9), row, row], "nothing"))
    assert [line.index("open") for line in lines[1:]] == [lines[0].index("STATE")] * 3


def many(database_url: str, count: int, size: int) -> None:
    engine = make_engine(database_url)
    state = json.dumps({"tools": {"t" * size: 1}})
    rows = [{"id": f"{n:022}", "state": state} for n in range(count)]
    with engine.begin() as connection:
        insert = "INSERT INTO guardrail_cells VALUES ('session', :id, :state, '', 0)"
        connection.execute(text(insert), rows)
    engine.dispose()


def test_a_long_list_is_never_in_memory_as_a_whole(database_url: str, parts: Parts) -> None:
    many(database_url, 4_000, 4_000)
    kind: Any = parts.turns.kit.guardrails.registry._kind
    seen, admin = 0, BreakerAdmin(kind, SqlBreakerStore(parts.db, parts.breakers), parts.db.clock.now)
    tracemalloc.start()
    with parts.binder.bound(SOMEBODY):
        for lines in (breakers.json_lines, lambda rows: breakers.table_lines(rows, "")):
            seen += sum(len(line) > 40 for line in lines(admin.listed(everything=True)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 2 * 4_000 + 1
    assert peak < 12_000_000, "four thousand bytes in each of four thousand rows are sixteen million"


def test_the_short_list_is_found_by_the_index(database_url: str, app: Flask, agentapp: Agentapp) -> None:
    queries: list[tuple[str, Any]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        queries.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    assert listed(agentapp) == []
    event.remove(Engine, "before_cursor_execute", note)
    (query,) = [(s, p) for s, p in queries if "FROM guardrail_cells" in s]
    engine = make_engine(database_url)
    with engine.connect() as connection:
        plan = repr(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query[0]}", query[1]).all())
    engine.dispose()
    assert "ix_guardrail_cells_marked" in plan


@both_databases
def test_reset_closes_the_breaker_and_leaves_budget_and_rate(app: Flask, agentapp: Agentapp) -> None:
    ann = person(app, "ann")
    chat = ann.new_chat()
    ann.ask(chat, "hello")
    pause(ann, chat)
    before = by_key(listed(agentapp, "--all"))[f"session:{chat}"]
    result = agentapp("reset", f"session:{chat}")
    assert (result.exit_code, result.stdout) == (0, f"session:{chat} was open, is closed now\n")
    after = by_key(listed(agentapp, "--all"))[f"session:{chat}"]
    assert (after["state"], after["failures"], after["trips"]) == ("closed", 0, 1)
    for kept in ("used", "rate_used", "tools", "reserved"):
        assert after[kept] == before[kept]
    assert before["used"] > 0
    assert ann.ask(chat, "hello again")["reply"]


@both_databases
def test_a_user_and_a_tenant_go_by_name_or_by_id(app: Flask, parts: Parts, agentapp: Agentapp) -> None:
    ann = added(parts, "ann")
    for which in ("user:ann", "user:ANN", f"user:{ann.id}", "tenant:Default", f"tenant:{ann.tenant_id}"):
        assert agentapp("force", which, "open").stdout == f"{which} was closed, is forced-open now\n"
        (row,) = listed(agentapp)
        assert row["id"] in (ann.id, ann.tenant_id)
        assert agentapp("reset", which).stdout == f"{which} was forced-open, is closed now\n"


def test_an_id_goes_before_a_name(app: Flask, parts: Parts, agentapp: Agentapp) -> None:
    ann = added(parts, "ann")
    sql(parts.settings, "UPDATE users SET id = 'an-id' WHERE id = ?", ann.id)
    parts.accounts.add("an-id", PASSWORD)
    agentapp("force", "user:an-id", "open")
    assert [(row["id"], row["name"]) for row in listed(agentapp)] == [("an-id", "ann")]


def test_resetting_the_provider_forgets_its_outage(
    settings: Settings, make_app: Callable[..., Flask], agentapp: Agentapp
) -> None:
    app = make_app(None, replace(settings, provider_breaker_users=2))
    ann, bob = person(app, "ann"), person(app, "bob", tenant="acme")
    for one in (ann, bob):
        one.send(one.new_chat(), "/fail")
    chat = ann.new_chat()
    answer = ann.send(chat, "hello").json
    assert answer["scope"] == "provider"
    assert answer["detail"].startswith(
        "The model is not answering right now, and not only for you. Try again"
    )
    (row,) = [row for row in listed(agentapp) if row["scope"] == "provider"]
    assert (row["state"], row["failures"], row["trips"]) == ("open", 2, 1)
    assert agentapp("reset", "provider:demo").stdout == "provider:demo was open, is closed now\n"
    ann.ask(chat, "hello")
    assert ann.send(ann.new_chat(), "/fail").status_code == 502
    assert ann.ask(chat, "hello"), "a single failure after the reset must not open it again"


def test_resetting_the_provider_gives_the_model_back_to_a_tenant_that_has_lost_it(
    settings: Settings, make_app: Callable[..., Flask], agentapp: Agentapp
) -> None:
    app = make_app(None, replace(settings, provider_breaker_users=2))
    ann, bob = person(app, "ann"), person(app, "bob")
    for one in (ann, bob):
        one.send(one.new_chat(), "/fail")
    assert [(row["scope"], row["state"]) for row in listed(agentapp) if row["trips"]] == [("tenant", "open")]
    assert ann.send(ann.new_chat(), "hello").json["scope"] == "provider"
    agentapp("reset", "provider:demo")
    assert ann.ask(ann.new_chat(), "hello")


def test_reset_of_a_breaker_that_never_was_changes_nothing(app: Flask, agentapp: Agentapp) -> None:
    person(app, "ann")
    result = agentapp("reset", "user:ann")
    assert (result.exit_code, result.stdout) == (0, "user:ann was closed, is closed now\n")
    assert [row for row in listed(agentapp, "--all") if row["scope"] == "user"] == []


def test_a_breaker_left_behind_can_still_be_reset(parts: Parts, agentapp: Agentapp) -> None:
    put(parts, Key("session", "gone"), STATES["forced-open"])
    put(parts, Key("provider", "former"), STATES["forced-open"])
    for which in ("session:gone", "provider:former"):
        assert agentapp("reset", which).exit_code == 0
    assert listed(agentapp) == []


@both_databases
@pytest.mark.parametrize("command", ["reset", "force"])
def test_what_there_is_not_is_told_in_one_line(app: Flask, agentapp: Agentapp, command: str) -> None:
    person(app, "ann")
    more = ("open",) if command == "force" else ()
    for which, message in {
        "session:nothing": "There is no session 'nothing'.",
        "user:nobody": "There is no user 'nobody'.",
        "user:default": "There is no user 'default'.",
        "tenant:ann": "There is no tenant 'ann'.",
        "provider:openai": "There is no provider 'openai'.",
        "session:a:b": "There is no session 'a:b'.",
        f"user:{'x' * 5000}": f"There is no user {'x' * 5000!r}.",
        "chat:1": "There are no breakers of a 'chat', only of a session, user, tenant, provider.",
        "login-name:a": "There are no breakers of a 'login-name', only of a session, user, tenant, provider.",
    }.items():
        result = agentapp(command, which, *more)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"agentapp: {message}\n")
    assert listed(agentapp) == []


@pytest.mark.parametrize("which", ["ann", "user:", ":ann", ":", "", "user:a\nb", "user:\udcff"])
@pytest.mark.parametrize("command", ["reset", "force"])
def test_what_is_malformed_is_a_mistake_in_usage(agentapp: Agentapp, command: str, which: str) -> None:
    result = agentapp(command, which, *(("open",) if command == "force" else ()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")
    assert "does not look like" in result.stderr


@both_databases
def test_what_a_command_sets_is_audited_with_the_reason(app: Flask, parts: Parts, agentapp: Agentapp) -> None:
    ann = person(app, "ann")
    tenant_id, user_id = ids_of(parts, ann)
    agentapp("force", "user:ann", "open", "--reason", "asked twice")
    agentapp("reset", "user:ann")
    for reason in ("x" * 201, "two\nlines"):
        assert agentapp("force", "user:ann", "open", "--reason", reason).exit_code == 1
    rows = audited(parts, "breaker-forced", "breaker-reset")
    assert [(row["action"], row["tenant_id"], row["user_id"], row["subject"]) for row in rows] == [
        ("breaker-forced", tenant_id, None, f"user:{user_id}"),
        ("breaker-reset", tenant_id, None, f"user:{user_id}"),
    ]
    assert ann.ask(ann.new_chat(), "hello")["status"] == "completed"


def test_a_breaker_can_only_be_forced_open_or_closed(app: Flask, agentapp: Agentapp) -> None:
    for args in (("user:ann", "half-open"), ("user:ann",), ()):
        assert agentapp("force", *args).exit_code == 2


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("session:{chat}", "This chat is paused by an operator or admin. Your other chats work."),
        ("user:ann", "Your chats are paused by an operator or admin."),
        ("tenant:default", "The chats of your organisation are paused by an operator."),
        ("provider:demo", "The model is paused for everybody by an operator."),
    ],
)
def test_forced_open_pauses_until_reset_and_says_who_did_it(
    app: Flask, agentapp: Agentapp, which: str, sentence: str
) -> None:
    ann, eve = person(app, "ann"), person(app, "eve", tenant="elsewhere")
    chat, others = ann.new_chat(), eve.new_chat()
    which = which.format(chat=chat)
    assert agentapp("force", which, "open").exit_code == 0
    for _ in range(2):
        answer = ann.send(chat, "hello")
        assert (answer.status_code, answer.json["code"]) == (503, "breaker-open")
        assert answer.json["scope"] == which.partition(":")[0]
        assert answer.json["detail"] == sentence
        assert int(answer.headers["Retry-After"]) > 0
    assert eve.send(others, "hello").status_code == (503 if which.startswith("provider") else 200)
    assert agentapp("reset", which).exit_code == 0
    assert ann.ask(chat, "hello")
    assert listed(agentapp) == []


def test_forced_closed_stays_closed_whatever_fails(app: Flask, agentapp: Agentapp) -> None:
    ann = person(app, "ann")
    chat = ann.new_chat()
    assert agentapp("force", f"session:{chat}", "closed").stdout.endswith(
        "was closed, is forced-closed now\n"
    )
    for _ in range(5):
        assert ann.send(chat, "/fail").status_code == 502
    agentapp("reset", f"session:{chat}")
    pause(ann, chat)


def test_a_turn_that_was_under_way_does_not_undo_what_an_operator_set(
    parts: Parts, agentapp: Agentapp
) -> None:
    key = Key("session", "s" * 22)
    put(parts, key, lambda b, now: fail(b, now - 3600).admit(now))
    with parts.binder.bound(SOMEBODY):
        generation = parts.turns.kit.guardrails.registry.get(key).breaker.generation
    agentapp("reset", f"session:{key.id}")
    put(parts, key, lambda b, now: b.failed(generation, now))
    assert listed(agentapp) == []


def test_a_reset_is_so_at_once_in_every_worker(database_url: str, agentapp: Agentapp, tmp_path: Path) -> None:
    add_users(database_url, ["ann"])
    env = {
        "AGENTAPP_DATABASE_URL": database_url,
        "AGENTAPP_DEMO_DELAY": "0",
        "AGENTAPP_BREAKER_COOLDOWN": "900",
    }
    with server(tmp_path, workers=2, env=env) as running:
        ann = Visitor(running.url)
        ann.sign_in("ann", SERVED_PASSWORD)
        chat = ann.new_chat()
        assert [ann.send(chat, "/fail").status for _ in range(3)] == [502] * 3
        # Each connection may meet the other worker: both know the chat as paused before the reset.
        assert {json.loads(ann.send(chat, "hello").body)["code"] for _ in range(12)} == {"breaker-open"}
        assert f"session:{chat}" in ":".join(agentapp("list").stdout.split())
        assert agentapp("reset", f"session:{chat}").stdout == f"session:{chat} was open, is closed now\n"
        assert [ann.send(chat, "hello").status for _ in range(6)] == [200] * 6
        assert agentapp("force", "user:ann", "open").exit_code == 0
        assert {json.loads(ann.send(chat, "hello").body)["scope"] for _ in range(6)} == {"user"}
