"""All commands: their help, what they import, and how a bad setting or a missing database ends them."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from agentapp import build
from agentapp.cli import COMMANDS, CommandOnDemand, main
from agentapp.storage import schema
from tests.support.commands import PASSWORD, Agentapp, add_user
from tests.support.postgres import postgres_url
from tests.support.server import SCRIPTS, run

# What a command that needs none of it must not wait for.
HEAVY = {"flask", "sqlalchemy", "alembic", "gunicorn", "anthropic", "pydantic"}
# Runs a command, and after its output prints what it imported.
TELLING = """
import json, sys
from agentapp.cli import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_version_is_told(agentapp: Agentapp) -> None:
    assert agentapp("--version").stdout == f"agentapp {build.NAME}\n"


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
        "audit",
    ],
)
def test_each_command_explains_itself(agentapp: Agentapp, command: str) -> None:
    result = agentapp(*command.split(), "--help")
    assert result.exit_code == 0
    first = result.stdout.split("\n\n")[1].strip()
    assert len(first) > 8
    assert first.endswith(".")


@pytest.mark.parametrize(("name", "summary"), COMMANDS)
def test_the_overview_says_of_a_command_what_its_own_help_says(name: str, summary: str) -> None:
    command = main.commands[name]
    assert isinstance(command, CommandOnDemand)
    loaded = command.load()
    assert loaded.name == name
    assert (loaded.help or "").split("\n\n")[0] == summary
    assert loaded.get_short_help_str(limit=60) == command.get_short_help_str(limit=60)


@pytest.mark.parametrize("command", ["--help", "--version", "audit --help", "audit --no-cache shop.py"])
def test_a_command_that_needs_no_server_imports_none_of_its_libraries(command: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("PRICES = {}\n")
    done = run(sys.executable, "-c", TELLING, *command.split(), directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert "click" in imported
    assert imported & HEAVY == set()


def test_a_command_that_needs_the_database_imports_it(tmp_path: Path) -> None:
    """Otherwise the test above would look for the wrong names."""
    done = run(sys.executable, "-c", TELLING, "db", "upgrade", directory=tmp_path)
    assert {"sqlalchemy", "alembic"} <= set(json.loads(done.stdout.splitlines()[-1]))


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


def test_commands_work_on_postgresql(agentapp: Agentapp, environ: dict[str, str]) -> None:
    with postgres_url() as environ["AGENTAPP_DATABASE_URL"]:
        assert agentapp("user", "list").exit_code == 2
        assert agentapp("db", "upgrade").exit_code == 0
        assert add_user(agentapp, "ann").exit_code == 0
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
