"""The command line: what each command does, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from agentapp import __version__
from agentapp.cli import main
from agentapp.errors import WrongPassword
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import schema
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database, make_engine
from tests.support.postgres import postgres_url
from tests.support.serving import SCRIPTS, clean_env, run

PASSWORD = "correct horse"

Agentapp = Callable[..., Result]


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    ours = {"AGENTAPP_DATABASE_URL": f"sqlite:///{tmp_path}/test.sqlite3"}
    for name in set(os.environ) - set(clean_env()):
        monkeypatch.delenv(name)
    return ours


@pytest.fixture
def agentapp(environ: dict[str, str]) -> Agentapp:
    def invoke(*args: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, args, input=stdin, env=environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def migrated(agentapp: Agentapp) -> Agentapp:
    assert agentapp("db", "upgrade").exit_code == 0
    return agentapp


@pytest.fixture
def accounts(migrated: Agentapp, environ: dict[str, str]) -> Iterator[Accounts]:
    binder = ThreadBinder()
    db = Database(environ["AGENTAPP_DATABASE_URL"], binder)
    with binder.bound(RequestScope(request_id="test")):
        yield Accounts(db)
    db.engine.dispose()


def add(agentapp: Agentapp, name: str, *options: str) -> Result:
    return agentapp("user", "add", name, *options, "--password-stdin", stdin=f"{PASSWORD}\n")


def test_version_is_told(agentapp: Agentapp) -> None:
    assert agentapp("--version").stdout == f"agentapp {__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "db",
        "db upgrade",
        "user",
        "user add",
        "user list",
        "user disable",
        "user enable",
        "user set-password",
    ],
)
def test_each_command_explains_itself(agentapp: Agentapp, command: str) -> None:
    result = agentapp(*command.split(), "--help")
    assert result.exit_code == 0
    first = result.stdout.split("\n\n")[1].strip()
    assert len(first) > 8
    assert first.endswith(".")


def test_added_user_can_sign_in(migrated: Agentapp, accounts: Accounts) -> None:
    result = add(migrated, "Ann", "--tenant", "acme", "--role", "admin")
    assert (result.exit_code, result.stdout) == (0, "added ann to acme as admin\n")
    user, _ = accounts.sign_in("ann", PASSWORD)
    assert (user.tenant, user.role) == ("acme", "admin")


def test_user_is_a_member_of_the_default_tenant_unless_told_otherwise(migrated: Agentapp) -> None:
    assert add(migrated, "ann").stdout == "added ann to default as member\n"


def test_list_shows_everybody(migrated: Agentapp) -> None:
    add(migrated, "ann")
    add(migrated, "bob", "--tenant", "acme", "--role", "operator")
    migrated("user", "disable", "ann")
    assert migrated("user", "list").stdout == "bob\tacme\toperator\nann\tdefault\tmember\tdisabled\n"
    assert json.loads(migrated("user", "list", "--json").stdout) == [
        {"name": "bob", "tenant": "acme", "role": "operator", "disabled": False},
        {"name": "ann", "tenant": "default", "role": "member", "disabled": True},
    ]


def test_list_of_nobody_is_empty(migrated: Agentapp) -> None:
    assert migrated("user", "list").stdout == ""
    assert json.loads(migrated("user", "list", "--json").stdout) == []


def test_disabled_user_cannot_sign_in_until_enabled(migrated: Agentapp, accounts: Accounts) -> None:
    add(migrated, "ann")
    _, token = accounts.sign_in("ann", PASSWORD)
    assert migrated("user", "disable", "Ann").exit_code == 0
    accounts._db.release()
    assert accounts.user_of(token) is None
    with pytest.raises(WrongPassword):
        accounts.sign_in("ann", PASSWORD)
    assert migrated("user", "enable", "ann").exit_code == 0
    accounts._db.release()
    accounts.sign_in("ann", PASSWORD)


def test_new_password_replaces_the_old_one(migrated: Agentapp, accounts: Accounts) -> None:
    add(migrated, "ann")
    assert migrated("user", "set-password", "ann", "--password-stdin", stdin="another one\n").exit_code == 0
    accounts.sign_in("ann", "another one")
    with pytest.raises(WrongPassword):
        accounts.sign_in("ann", PASSWORD)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nsecond line\n"])
def test_only_the_line_end_is_dropped_from_a_password(
    migrated: Agentapp, accounts: Accounts, end: str
) -> None:
    migrated("user", "add", "ann", "--password-stdin", stdin=f"  with spaces \t{end}")
    accounts.sign_in("ann", "  with spaces \t")


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("", "There is no password on standard input."),
        ("\nlater", "There is no password on standard input."),
        (b"caf\xe9 caf\xe9\n", "The password on standard input is not UTF-8 text."),
        ("short\n", "A password has at least 8 characters and at most 1024 bytes."),
    ],
)
@pytest.mark.parametrize("command", ["add", "set-password"])
def test_bad_password_is_refused_in_one_line(
    migrated: Agentapp, command: str, stdin: str | bytes, message: str
) -> None:
    result = migrated("user", command, "ann", "--password-stdin", stdin=stdin)
    assert (result.exit_code, result.stderr) == (1, f"agentapp: {message}\n")
    assert migrated("user", "list").stdout == ""


@pytest.mark.parametrize("command", ["add", "set-password"])
def test_password_is_never_asked_for_in_any_other_way(migrated: Agentapp, command: str) -> None:
    result = migrated("user", command, "ann", stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--password-stdin" in result.stderr
    assert migrated("user", "list").stdout == ""


def test_second_user_of_the_same_name_is_refused(migrated: Agentapp) -> None:
    add(migrated, "ann")
    result = add(migrated, "ANN", "--tenant", "acme")
    assert (result.exit_code, result.stderr) == (1, "agentapp: There is already a user 'ann'.\n")


def test_bad_name_is_refused(migrated: Agentapp) -> None:
    result = add(migrated, "a b")
    assert result.exit_code == 1
    assert result.stderr.startswith("agentapp: A user name has ")


def test_bad_role_is_refused(migrated: Agentapp) -> None:
    result = add(migrated, "ann", "--role", "king")
    assert result.exit_code == 2
    for word in ("king", "member", "admin", "operator"):
        assert f"'{word}'" in result.stderr


@pytest.mark.parametrize("command", ["disable", "enable", "set-password"])
def test_unknown_user_is_told_in_one_line(migrated: Agentapp, command: str) -> None:
    options = ("--password-stdin",) if command == "set-password" else ()
    result = migrated("user", command, "nobody", *options, stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stderr) == (1, "agentapp: There is no user 'nobody'.\n")


def test_the_first_user_can_be_added_before_the_first_start(agentapp: Agentapp) -> None:
    result = agentapp("user", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stdout) == (0, "added ann to default as member\n")


@pytest.mark.parametrize("command", ["list", "disable", "enable", "set-password"])
def test_missing_schema_is_told_by_the_other_user_commands(agentapp: Agentapp, command: str) -> None:
    name = () if command == "list" else ("ann",)
    options = ("--password-stdin",) if command == "set-password" else ()
    result = agentapp("user", command, *name, *options, stdin=f"{PASSWORD}\n")
    assert result.exit_code == 2
    assert result.stderr == "agentapp: the database has no tables yet: run `agentapp db upgrade`\n"


def test_newer_schema_is_told_by_user_commands_and_by_upgrade(
    migrated: Agentapp, environ: dict[str, str]
) -> None:
    engine = make_engine(environ["AGENTAPP_DATABASE_URL"])
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    engine.dispose()
    for command in (("user", "list"), ("db", "upgrade")):
        result = migrated(*command)
        assert result.exit_code == 2
        assert result.stderr.startswith("agentapp: the database is at revision 0099, made by a newer")
        assert result.stderr.count("\n") == 1


def test_bad_setting_ends_any_command_in_one_line(agentapp: Agentapp, environ: dict[str, str]) -> None:
    environ["AGENTAPP_HTTPS"] = "perhaps"
    for command in (("user", "list"), ("db", "upgrade"), ("serve",)):
        result = agentapp(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "agentapp: AGENTAPP_HTTPS: must be 0 or 1; not 'perhaps'\n"


def test_database_that_is_away_is_told_in_one_line(agentapp: Agentapp, environ: dict[str, str]) -> None:
    environ["AGENTAPP_DATABASE_URL"] = "postgresql+psycopg://nobody:secret@127.0.0.1:1/none"
    for command, code in ((("user", "list"), 1), (("db", "upgrade"), 2)):
        result = agentapp(*command)
        assert result.exit_code == code
        assert result.stderr.startswith("agentapp: cannot ")
        assert result.stderr.count("\n") == 1
        assert "secret" not in result.stderr


def test_directory_that_is_not_there_is_told_in_one_line(agentapp: Agentapp, environ: dict[str, str]) -> None:
    environ["AGENTAPP_DATABASE_URL"] = "sqlite:////no/such/directory/test.sqlite3"
    result = agentapp("db", "upgrade")
    assert result.exit_code == 2
    assert result.stderr == "agentapp: cannot migrate the database: unable to open database file\n"


def test_commands_work_on_postgresql(agentapp: Agentapp, environ: dict[str, str]) -> None:
    with postgres_url() as environ["AGENTAPP_DATABASE_URL"]:
        assert agentapp("user", "list").exit_code == 2
        assert agentapp("db", "upgrade").exit_code == 0
        assert add(agentapp, "ann").exit_code == 0
        assert agentapp("user", "list").stdout == "ann\tdefault\tmember\n"


def test_installed_command_works_from_an_empty_directory(tmp_path: Path) -> None:
    def agentapp(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
        done = run(SCRIPTS / "agentapp", *args, directory=tmp_path, stdin=stdin)
        return done.returncode, done.stdout, done.stderr

    assert agentapp("user", "list")[0] == 2
    assert agentapp("db", "upgrade") == (0, f"the database is at revision {schema.HEAD}\n", "")
    assert agentapp("user", "add", "ann", "--password-stdin", stdin=PASSWORD.encode())[0] == 0
    assert agentapp("user", "list") == (0, "ann\tdefault\tmember\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["instance"]
    assert stat.S_IMODE((tmp_path / "instance").stat().st_mode) == 0o700
