"""Brings the database to the newest schema in one transaction. Several processes may try at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from agentapp.server import resources
from agentapp.storage import schema

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(url: str) -> None:
    with schema.migrating(url) as connection:
        if not schema.is_current(connection):
            _run_migrations(connection)
            schema.check_references(connection)


def _run_migrations(connection: Connection) -> None:
    from alembic import command  # takes a third of a second, and mostly there is nothing to migrate

    command.upgrade(config_for(connection), "head")


def config_for(connection: object) -> Config:
    """Made here and not read from an alembic.ini, because the settings already name the one database."""
    from alembic.config import Config

    config = Config()
    # Alembic treats a percent sign in an option as a placeholder, and a directory may have one in its name.
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
