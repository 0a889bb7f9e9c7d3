"""Nobody else on the machine may read the database or the secret, however they came to be there."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentapp import config
from agentapp.instance import kept_secret, make_private
from agentapp.storage.engines import make_engine
from tests.support.commands import Agentapp, add_user

ENDINGS = ("", "-wal", "-shm")


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


@contextmanager
def in_use(database: Path) -> Iterator[None]:
    """Somebody has it open, so that its two other files are there."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        connection.execute("CREATE TABLE IF NOT EXISTS used (x)")
        yield


def test_what_commands_make_is_private_whatever_the_umask(
    agentapp: Agentapp, environ: dict[str, str], tmp_path: Path
) -> None:
    del environ["AGENTAPP_DATABASE_URL"]
    assert add_user(agentapp, "ann").exit_code == 0
    instance = tmp_path / "instance"
    with in_use(instance / "agentapp.sqlite3"):
        assert len(modes(instance)) == 4
        assert set(modes(instance).values()) == {0o600}
    assert stat.S_IMODE(instance.stat().st_mode) == 0o700


@pytest.mark.parametrize("command", [("db", "upgrade"), ("user", "list"), ("breakers", "list")])
def test_every_command_runs_with_a_private_umask(migrated: Agentapp, command: tuple[str, ...]) -> None:
    os.umask(0o022)
    assert migrated(*command).exit_code == 0
    assert os.umask(0o022) == 0o077


def test_files_that_others_could_use_are_made_private_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "old.sqlite3"
    with in_use(database):
        for ending in ENDINGS:
            Path(f"{database}{ending}").chmod(0o664)
        engine = make_engine(f"sqlite:///{database}")
        for _ in range(2):
            with engine.connect():
                assert set(modes(tmp_path).values()) == {0o600}
            engine.dispose()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == f"others could use {', '.join(f'{database}{end}' for end in ENDINGS)}: made private"


def test_a_database_that_another_program_made_is_private_with_all_its_files(tmp_path: Path) -> None:
    """As under a gunicorn without our configuration: nothing but the engine is ours there."""
    umask = os.umask(0)
    try:
        engine = make_engine(f"sqlite:///{tmp_path / 'new.sqlite3'}")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (x)")
            assert modes(tmp_path) == {f"new.sqlite3{ending}": 0o600 for ending in ENDINGS}
        engine.dispose()
    finally:
        os.umask(umask)


def test_a_secret_that_others_could_read_is_made_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o644)
    assert kept_secret(tmp_path) == "s" * 40
    assert modes(tmp_path) == {"secret": 0o600}
    assert caplog.messages == [f"others could use {secret}: made private"]


def test_a_directory_that_was_made_wider_stays_as_it_is(tmp_path: Path) -> None:
    instance = tmp_path / "instance"
    instance.mkdir()
    instance.chmod(0o750)
    config.load({"AGENTAPP_INSTANCE": str(instance)})
    assert stat.S_IMODE(instance.stat().st_mode) == 0o750


def test_a_file_of_somebody_elses_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    file = tmp_path / "theirs"
    file.touch()
    file.chmod(0o644)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_private([file])
    assert caplog.messages == [f"others may read {file}, and that cannot be changed: Operation not permitted"]
