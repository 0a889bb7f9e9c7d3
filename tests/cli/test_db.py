"""`agentapp db`: what is said about a schema or a place that is not right."""

from __future__ import annotations

from agentapp.storage import schema
from tests.support.commands import Agentapp, set_revision


def test_upgrading_twice_tells_the_same_revision(agentapp: Agentapp) -> None:
    for _ in range(2):
        result = agentapp("db", "upgrade")
        assert (result.exit_code, result.stdout) == (0, f"the database is at revision {schema.HEAD}\n")


def test_newer_schema_is_told_by_user_commands_and_by_upgrade(
    migrated: Agentapp, environ: dict[str, str]
) -> None:
    set_revision(environ["AGENTAPP_DATABASE_URL"], "0099")
    for command in (("user", "list"), ("db", "upgrade")):
        result = migrated(*command)
        assert result.exit_code == 2
        assert result.stderr.startswith("agentapp: the database is at revision 0099, made by a newer")
        assert result.stderr.count("\n") == 1


def test_directory_that_is_not_there_is_told_in_one_line(agentapp: Agentapp, environ: dict[str, str]) -> None:
    environ["AGENTAPP_DATABASE_URL"] = "sqlite:////no/such/directory/test.sqlite3"
    result = agentapp("db", "upgrade")
    assert result.exit_code == 2
    assert result.stderr == "agentapp: cannot migrate the database: unable to open database file\n"
