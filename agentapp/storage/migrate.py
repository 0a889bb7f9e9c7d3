"""Brings the database to the newest schema in one transaction. Several processes may try at the same time."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from agentapp.server import resources
from agentapp.storage import schema
from agentapp.storage.migration_lock import MIGRATION_WAIT_SECONDS, PAUSE_SECONDS, TablesInUse
from agentapp.storage.older_workers import refuse_if_older_workers_run

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)


def upgrade(url: str) -> str:
    """Returns the revision that the database has then: a newer one that this code can work with stays."""
    ends = time.monotonic() + MIGRATION_WAIT_SECONDS
    tries = 0
    while True:
        try:
            return _try_once(url)
        except TablesInUse:
            if time.monotonic() > ends:
                raise
        if tries == 0:
            log.warning("migration: waits for transactions of others that use its tables")
        tries += 1
        time.sleep(PAUSE_SECONDS)


def _try_once(url: str) -> str:
    with schema.migrating(url) as connection:
        if schema.needs_migration(connection):
            _run_migrations(connection)
            schema.check_references(connection)
        return schema.revision_of(connection) or ""


def _run_migrations(connection: Connection) -> None:
    from alembic import command  # takes a third of a second, and mostly there is nothing to migrate

    config = config_for(connection)
    oldest_code = _oldest_code(config, schema.revision_of(connection))
    if oldest_code is not None:
        refuse_if_older_workers_run(connection, oldest_code)
    command.upgrade(config, "head")
    if oldest_code is not None:
        schema.note_oldest_code(connection, oldest_code)


def _oldest_code(config: Config, revision: str | None) -> str | None:
    """What the revisions after this one leave: the oldest code that can still work with the schema. None if
    it may be any that could before.
    """
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(config).iterate_revisions("head", revision or "base")
    declared = (getattr(script.module, "oldest_code", None) for script in scripts)
    return max((each for each in declared if each is not None), default=None)


def config_for(connection: object) -> Config:
    """Made here and not read from an alembic.ini, because the settings already name the one database."""
    from alembic.config import Config

    config = Config()
    # Alembic treats a percent sign in an option as a placeholder, and a directory may have one in its name.
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
