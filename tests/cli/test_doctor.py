"""`agentapp doctor`: each line's ok and not ok, and that nothing is changed by looking."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentapp.cli import doctor
from agentapp.cli.checks import database_checks, machine_checks, model_checks, setting_checks
from agentapp.cli.checks.line import do
from tests.support.collector import collector
from tests.support.commands import BAD_SETTINGS, Agentapp, set_revision
from tests.support.messages_api import MessagesApi, Models
from tests.support.postgres import migrated_postgres_url
from tests.support.server import free_port

KEY = "sk-ant-the-secret-key"
MODEL = "claude-sonnet-4-6"
SECRET = "s" * 40
PUBLIC = {"AGENTAPP_BIND": "0.0.0.0:8000", "AGENTAPP_SECRET_KEY": SECRET}
BEHIND_TLS = {"AGENTAPP_HTTPS": "1", "AGENTAPP_HOSTS": "chat.example.org", "AGENTAPP_TRUSTED_PROXIES": "1"}
WEBHOOK = {
    "AGENTAPP_ALERT_WEBHOOK": "https://hooks.example.org/T0/the-private-path",
    "AGENTAPP_ALERT_WEBHOOK_SECRET": "whsec_" + "c2VjcmV0" * 4,
}

Found = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def found(migrated: Agentapp, environ: dict[str, str]) -> Found:
    """The lines by what was looked at, each as its state and its text."""

    def look(*options: str, **variables: str) -> dict[str, tuple[str, str]]:
        environ.update(variables)
        done = migrated("doctor", "--json", *options)
        lines = json.loads(done.stdout)
        states = {line["state"] for line in lines}
        assert states <= {"ok", "note", "do"}
        assert done.exit_code in ((1, 2) if "do" in states else (0,))
        return {line["check"]: (line["state"], line["text"]) for line in lines}

    return look


def test_if_all_is_well_every_line_says_ok(migrated: Agentapp) -> None:
    done = migrated("doctor")
    assert done.exit_code == 0, done.stdout
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok"}
    assert done.stderr == ""
    assert [line.split("  ")[2] for line in done.stdout.splitlines()] == [
        *("settings", "secret", "address", "https", "proxies", "metrics", "alerts", "disk"),
        *("schema", "database", "clock", "redis", "team", "provider", "open files", "traces"),
    ]


def everything_below(directory: Path) -> dict[str, Any]:
    """The directory too: a file that was there for a moment has changed it."""
    found = {str(each): each for each in (directory, *directory.rglob("*"))}
    return {
        name: (each.stat().st_mode, each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for name, each in found.items()
    }


def test_it_makes_and_changes_nothing(agentapp: Agentapp, migrated: Agentapp, tmp_path: Path) -> None:
    os.chmod(tmp_path / "test.sqlite3", 0o644)
    before = everything_below(tmp_path)
    migrated("doctor")
    assert everything_below(tmp_path) == before


def test_on_a_fresh_machine_it_makes_nothing_either(agentapp: Agentapp, tmp_path: Path) -> None:
    done = agentapp("doctor")
    assert done.exit_code == 1
    assert "do    schema" in done.stdout
    assert "run `agentapp db upgrade`, or start `agentapp serve`" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_all_bad_settings_are_named_and_nothing_else_is_looked_at(
    agentapp: Agentapp, environ: dict[str, str]
) -> None:
    environ |= {"AGENTAPP_HTTPS": "perhaps", "AGENTAPP_WORKERS": "many", "AGENTAPP_SECRET_KEY": "short"}
    done = agentapp("doctor")
    assert done.exit_code == 2
    lines = done.stdout.splitlines()
    assert sorted(line.split()[2] for line in lines) == [
        "AGENTAPP_HTTPS:",
        "AGENTAPP_SECRET_KEY:",
        "AGENTAPP_WORKERS:",
    ]
    assert "short" not in done.stdout


@pytest.mark.parametrize(
    ("env", "problem"), [*BAD_SETTINGS, ({"AGENTAPP_PROVIDER": "anthropic"}, "ANTHROPIC_API_KEY: needed")]
)
def test_what_stops_a_start_is_a_bad_setting(
    agentapp: Agentapp, environ: dict[str, str], env: dict[str, str], problem: str
) -> None:
    environ |= {name: value.format(port=8000) for name, value in env.items()}
    done = agentapp("doctor")
    assert done.exit_code == 2
    assert f"do    settings  {problem}" in done.stdout


def test_a_variable_that_is_no_setting_is_told(found: Found) -> None:
    state, text = found(AGENTAPP_HOST="chat.example.org")["settings"]
    assert state == "do"
    assert "AGENTAPP_HOST is no setting" in text
    assert "did you mean AGENTAPP_HOSTS?" in text


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (PUBLIC, {"address": "do", "https": "do", "metrics": "note", "provider": "do"}),
        (PUBLIC | BEHIND_TLS, {"address": "ok", "https": "ok", "proxies": "note", "metrics": "note"}),
        (PUBLIC | {"AGENTAPP_METRICS_TOKEN": SECRET}, {"metrics": "ok", "alerts": "note"}),
        (PUBLIC | WEBHOOK, {"alerts": "ok"}),
        (BEHIND_TLS, {"alerts": "note"}),
        (PUBLIC | {"AGENTAPP_PROVIDER": "demo"}, {"provider": "note"}),
        (BEHIND_TLS, {"address": "ok", "https": "ok", "proxies": "ok", "metrics": "note"}),
        (BEHIND_TLS | {"AGENTAPP_TRUSTED_PROXIES": "0"}, {"https": "ok", "proxies": "do"}),
        ({"AGENTAPP_TRUSTED_PROXIES": "1"}, {"https": "note", "proxies": "ok"}),
    ],
)
def test_what_is_risky_together_is_told(found: Found, env: dict[str, str], expected: dict[str, str]) -> None:
    lines = found(**env)
    assert {check: lines[check][0] for check in expected} == expected


def test_the_webhook_is_told_by_its_host_and_needs_its_secret(
    found: Found, agentapp: Agentapp, environ: dict[str, str]
) -> None:
    lines = found(**WEBHOOK)
    assert lines["alerts"] == ("ok", "sent, signed, to hooks.example.org")
    assert "private" not in str(lines)
    assert "secretsecret" not in str(lines)
    environ.pop("AGENTAPP_ALERT_WEBHOOK_SECRET")
    done = agentapp("doctor")
    assert done.exit_code == 2
    assert "AGENTAPP_ALERT_WEBHOOK_SECRET: needed because AGENTAPP_ALERT_WEBHOOK is set" in done.stdout


def test_it_may_be_told_where_to_listen_as_serve_is(found: Found, agentapp: Agentapp) -> None:
    assert found("--bind", "0.0.0.0:80", AGENTAPP_SECRET_KEY=SECRET)["address"][0] == "do"
    done = agentapp("doctor", "--bind", "nonsense")
    assert done.exit_code == 2
    assert "do    settings  --bind: must look like 127.0.0.1:8000" in done.stdout


def test_a_secret_that_others_may_read_or_that_is_too_short(found: Found, tmp_path: Path) -> None:
    (tmp_path / "instance").mkdir()
    secret = tmp_path / "instance" / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o640)
    state, text = found()["secret"]
    assert (state, "chmod 600" in text) == ("do", True)
    secret.chmod(0o600)
    assert found()["secret"][0] == "ok"
    secret.write_text("short")
    assert found()["secret"][0] == "do"
    secret.write_bytes(b"\xff" * 40)
    assert found()["secret"][0] == "do"


@pytest.mark.parametrize(
    ("revision", "advice"), [("0001", "agentapp db upgrade"), ("9999", "update agentapp")]
)
def test_an_older_and_a_newer_schema(
    found: Found, environ: dict[str, str], revision: str, advice: str
) -> None:
    assert found()["schema"][0] == "ok"
    set_revision(environ["AGENTAPP_DATABASE_URL"], revision)
    state, text = found()["schema"]
    assert state == "do"
    assert advice in text


def test_a_sqlite_file_that_a_server_has_open_is_read_with_its_log(
    found: Found, environ: dict[str, str], tmp_path: Path
) -> None:
    writing = sqlite3.connect(tmp_path / "test.sqlite3")
    writing.execute("PRAGMA journal_mode = WAL")
    writing.execute("UPDATE alembic_version SET version_num = '9999'")
    writing.commit()
    assert (tmp_path / "test.sqlite3-wal").exists()
    assert "revision 9999" in found()["schema"][1]
    writing.close()


def test_a_file_that_is_no_database_and_one_that_cannot_be_written(
    found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda file, mode: False)
        assert "run this as the server's user" in found()["database"][1]
    (tmp_path / "test.sqlite3").write_bytes(b"no database " * 1000)
    state, text = found()["database"]
    assert (state, text) == ("do", "cannot use the database: file is not a database")


def test_postgresql_with_its_schema_and_its_clock(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    with migrated_postgres_url() as url:
        lines = found(AGENTAPP_DATABASE_URL=url)
        assert [lines[check][0] for check in ("database", "schema", "clock")] == ["ok", "ok", "ok"]
        assert "disk" not in lines, "it is the server's, and cannot be seen from here"
        for ahead, where in ((90.0, "ahead of"), (-1.5, "behind")):
            monkeypatch.setattr("agentapp.storage.inspection._clock_ahead", lambda _, by=ahead: by)
            state, text = found()["clock"]
            assert state == "do"
            assert f"{abs(ahead):.1f} s {where}" in text
        monkeypatch.setattr(database_checks, "SLOW_SECONDS", 0.0)
        assert found()["database"][0] == "note"


def test_a_database_that_is_away_and_its_password_is_not_shown(found: Found) -> None:
    url = f"postgresql+psycopg://me:geheim@127.0.0.1:{free_port()}/chat"
    lines = found(AGENTAPP_DATABASE_URL=url)
    assert lines["database"][0] == "do"
    assert "Connection refused" in lines["database"][1]
    assert "geheim" not in str(lines)


def test_a_disk_that_is_full_or_nearly_full(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    for megabytes, expected in ((63, "do"), (65, "note"), (1000, "ok")):
        monkeypatch.setattr(database_checks, "free_bytes", lambda _, mb=megabytes: mb * 1_000_000)
        assert found()["disk"][0] == expected
    monkeypatch.setattr(database_checks, "free_bytes", lambda _: 1)
    assert found(AGENTAPP_DISK_RESERVE_MB="off")["disk"][0] == "ok"


@pytest.fixture
def api(environ: dict[str, str]) -> Iterator[MessagesApi]:
    with MessagesApi() as running:
        environ |= {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": running.url}
        yield running
        assert running.requests == (), "a call that would be paid"


@pytest.mark.parametrize(
    ("models", "state", "words"),
    [
        (Models(key=KEY), "ok", f"takes the key and has {MODEL}"),
        (Models(key="another"), "do", "does not take the key"),
        (Models(status=403), "do", "does not let it ask"),
        (Models(ids=("another-model",)), "do", f"has no model {MODEL}"),
        (Models(ids=None), "note", "has no list of models"),
        (Models(status=405), "note", "has no list of models"),
        (Models(status=529), "note", "busy or failing (529)"),
        (Models(status=418), "do", "refuses to tell (418)"),
        (Models(status=302, location="http://127.0.0.1:9/"), "do", "sends us elsewhere (302)"),
        (Models(page="<html>a page</html>"), "do", "not as the Messages API does"),
        (Models(delay=5.0), "do", "does not answer within 0.2 s"),
    ],
)
def test_the_provider_is_asked_without_a_paid_call(
    found: Found, api: MessagesApi, monkeypatch: pytest.MonkeyPatch, models: Models, state: str, words: str
) -> None:
    if models.delay:
        monkeypatch.setattr(model_checks, "PROBE_SECONDS", 0.2)
    api.models = models
    lines = found()
    assert lines["provider"][0] == state
    assert words in lines["provider"][1]
    assert KEY not in str(lines)


def test_a_provider_that_cannot_be_reached_and_a_key_that_cannot_be_sent(found: Found) -> None:
    address = f"http://somebody:geheim@127.0.0.1:{free_port()}"
    state, text = found(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=address)["provider"]
    assert state == "do"
    assert "cannot be reached (ConnectError): is ANTHROPIC_BASE_URL right?" in text
    assert "geheim" not in text
    assert found(ANTHROPIC_API_KEY="two\nlines")["provider"] == (
        "do",
        "ANTHROPIC_API_KEY is not one line of plain characters",
    )


def test_every_model_of_the_team_is_asked_about(
    migrated: Agentapp, api: MessagesApi, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "two_models.py").write_text(
        "from agentapp.agents import Agent, Team\n"
        "team = Team(Agent('front', 'Answer.'), (Agent('dear', 'Think.', description='x', model='other'),))\n"
    )
    environ["AGENTAPP_TEAM"] = "two_models:team"
    done = migrated("doctor")
    assert f"takes the key and has {MODEL}" in done.stdout
    assert "has no model other: see AGENTAPP_MODEL, or the team" in done.stdout
    assert "front, dear" in done.stdout


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "cannot load 'broken_team:team'"),
        ("team = 3\n", "is a int, not an agentapp.agents.Team"),
        ("raise RuntimeError('private words')\n", "to import broken_team:team raises RuntimeError"),
    ],
)
def test_a_team_that_cannot_be_loaded(found: Found, tmp_path: Path, source: str | None, problem: str) -> None:
    if source is not None:
        (tmp_path / "broken_team.py").write_text(source)
    sys.modules.pop("broken_team", None)
    lines = found(AGENTAPP_TEAM="broken_team:team")
    assert lines["team"][0] == "do"
    assert problem in lines["team"][1]
    assert "private" not in str(lines)
    assert "provider" not in lines


def test_too_few_open_files(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, expected in ((1024, "do"), (5760, "ok"), (resource.RLIM_INFINITY, "ok")):
        monkeypatch.setattr(machine_checks.resource, "getrlimit", lambda _, most=hard: (256, most))
        assert found()["open files"][0] == expected


def test_traces_that_cannot_be_sent(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as there:
        state, text = found(OTEL_EXPORTER_OTLP_ENDPOINT=there.url)["traces"]
        assert (state, text) == ("ok", f"one a turn, without words of anybody, to {there.url}")
        assert "with what people and models say" in found(AGENTAPP_TRACE_CONTENT="1")["traces"][1]
        assert there.spans() == []
        for status, expected in ((401, "note"), (404, "do"), (302, "do")):
            there.status = status
            assert found()["traces"][0] == expected
        monkeypatch.setattr(machine_checks, "find_spec", lambda name: None)
        assert "install agentapp with its extra otel" in found()["traces"][1]


def test_a_collector_that_is_not_there(found: Found) -> None:
    state, text = found(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}")["traces"]
    assert (state, "(ConnectionRefusedError)" in text) == ("do", True)


def test_a_check_that_hangs_or_fails_keeps_no_other_from_being_made(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def fail(*_: object) -> None:
        raise RuntimeError("private words")

    monkeypatch.setattr(doctor, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(database_checks, "check_database", lambda _: end.wait(10) and [])
    monkeypatch.setattr(setting_checks, "check_secret", fail)
    lines = found()
    end.set()
    assert lines["database"] == ("do", "it could not be found out within 0.5 s")
    assert lines["secret"][0] == "do"
    assert "RuntimeError" in lines["secret"][1]
    assert "private" not in str(lines)
    assert lines["open files"][0] == "ok"


def test_no_line_shows_a_secret() -> None:
    line = do("x", "postgresql://me:pass@host and http://token@there and the-key; mail me@example.org")
    assert line.without(["the-key", ""]).text == (
        "postgresql://***@host and http://***@there and ***; mail me@example.org"
    )


@pytest.mark.parametrize("url", ["chat.example.org", "ftp://there", "https://me:pass@there"])
def test_an_address_that_is_none_is_refused(agentapp: Agentapp, url: str) -> None:
    done = agentapp("doctor", "--url", url)
    assert done.exit_code == 2
    assert "does not look like https://chat.example.org" in done.stderr
