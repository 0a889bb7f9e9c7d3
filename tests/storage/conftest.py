"""Databases without tables, and revisions that are still to come."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from agentapp.server import resources
from agentapp.storage import schema
from agentapp.storage.engines import make_engine
from tests.support.postgres import postgres_url

NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, oldest_code = {revision!r}, {after!r}, {oldest_code!r}

def upgrade():
    {body}
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/test.sqlite3"
    else:
        with postgres_url() as made:
            yield made


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = make_engine(url)
    yield made
    made.dispose()


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Adds a revision to a copy of the migrations, as a later release would, and makes this code know it."""
    copy = tmp_path / "release" / "migrations"
    shutil.copytree(resources.migrations(), copy)
    monkeypatch.setattr(resources, "migrations", lambda: copy)

    def add(body: str, oldest_code: str | None = None) -> str:
        revision = f"{int(schema.HEAD) + 1:04}"
        text = NEXT.format(revision=revision, after=schema.HEAD, oldest_code=oldest_code, body=body)
        (copy / "versions" / f"{revision}.py").write_text(text)
        monkeypatch.setattr(schema, "HEAD", revision)
        return revision

    return add
