"""The databases that tests run on: SQLite and PostgreSQL, each empty and with all tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentapp.config import Settings
from tests.support.postgres import migrated_postgres_url

DATABASES = ("sqlite", "postgresql")

# For a test that has the fixture `database_url` and is about one of them.
only_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
only_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@contextmanager
def migrated(database: str, settings: Settings) -> Iterator[str]:
    """The URL of an empty database with all tables. On SQLite it is the one of the test's settings."""
    if database == "sqlite":
        yield settings.database_url
        return
    with migrated_postgres_url() as url:
        yield url


@contextmanager
def migrated_in(directory: Path, database: str, sqlite_template: Path) -> Iterator[str]:
    """The same without settings: on SQLite it is a file in that directory."""
    if database == "sqlite":
        path = directory / "test.sqlite3"
        shutil.copy(sqlite_template, path)
        yield f"sqlite:///{path}"
        return
    with migrated_postgres_url() as url:
        yield url
