"""Brings the database to the newest schema in one transaction. Several processes may try at the same time."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from agentapp.server import resources
from agentapp.storage import schema


def upgrade(url: str) -> None:
    with schema.migrating(url) as connection:
        command.upgrade(config_for(connection), "head")


def config_for(connection: object) -> Config:
    """Made here and not read from an alembic.ini, because the settings already name the one database."""
    config = Config()
    # Alembic treats a percent sign in an option as a placeholder, and a directory may have one in its name.
    config.set_main_option("script_location", str(resources.migrations()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
