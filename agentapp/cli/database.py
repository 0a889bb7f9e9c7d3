"""The database as the commands open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentapp import instance
from agentapp.config import Settings
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import migrate, schema
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from agentapp.storage.postgres_options import PostgresOptions

BY_COMMAND = RequestScope(request_id="cli")


def upgrade(settings: Settings) -> str:
    """Bring the schema up to date, in the instance directory if the database is there. Its revision then."""
    if settings.database_url.startswith(f"sqlite:///{settings.instance}/"):
        instance.prepare(settings.instance)
    return migrate.upgrade(settings.database_url)


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    schema.require_usable(settings.database_url)
    binder = ThreadBinder()
    database = Database(
        settings.database_url,
        binder,
        settings.db_statement_timeout,
        postgres=PostgresOptions.of(settings),
    )
    try:
        with binder.bound(BY_COMMAND):
            yield database
    finally:
        database.engine.dispose()


@contextmanager
def open_accounts(settings: Settings) -> Iterator[Accounts]:
    with open_database(settings) as database:
        yield Accounts(database)
