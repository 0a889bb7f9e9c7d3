"""Brings the database to the newest schema, in one transaction, also while other processes try the same."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from agentapp.server import resources
from agentapp.storage import schema


def upgrade(url: str) -> None:
    with schema.migrating(url) as connection:
        command.upgrade(config_for(connection), "head")


def config_for(connection: object) -> Config:
    """Made here and not read from an alembic.ini: there is one database, and the settings already name it."""
    config = Config()
    # Alembic's options are interpolated, and a directory may have a percent sign in its name.
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
