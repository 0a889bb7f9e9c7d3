"""The commands, run in this process on a database of the test's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentapp.cli import main
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from tests.support.commands import Agentapp
from tests.support.server import clean_env


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    umask = os.umask(0o022)  # what most people have, and a command changes for its process
    monkeypatch.chdir(tmp_path)
    ours = {"AGENTAPP_DATABASE_URL": f"sqlite:///{tmp_path}/test.sqlite3"}
    for name in set(os.environ) - set(clean_env()):
        monkeypatch.delenv(name)
    yield ours
    os.umask(umask)


@pytest.fixture
def agentapp(environ: dict[str, str]) -> Agentapp:
    def invoke(*args: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, args, input=stdin, env=environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def migrated(agentapp: Agentapp, tmp_path: Path, sqlite_template: Path) -> Agentapp:
    """With a database as `agentapp db upgrade` makes it, which is a test of its own."""
    shutil.copy(sqlite_template, tmp_path / "test.sqlite3")
    return agentapp


@pytest.fixture
def accounts(migrated: Agentapp, environ: dict[str, str]) -> Iterator[Accounts]:
    binder = ThreadBinder()
    db = Database(environ["AGENTAPP_DATABASE_URL"], binder)
    with binder.bound(RequestScope(request_id="test")):
        yield Accounts(db)
    db.engine.dispose()
