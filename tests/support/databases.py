"""The databases that tests run on: SQLite and PostgreSQL, each empty and with all tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentapp.config import Settings
from agentapp.storage import migrate
from tests.support.postgres import postgres_url

DATABASES = ("sqlite", "postgresql")


@contextmanager
def migrated(database: str, settings: Settings) -> Iterator[str]:
    """The URL of an empty database with all tables. On SQLite it is the one of the test's settings."""
    if database == "sqlite":
        yield settings.database_url
        return
    with postgres_url() as url:
        migrate.upgrade(url)
        yield url
