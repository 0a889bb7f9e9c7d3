"""`agentapp db`: the database's schema."""

from __future__ import annotations

import click

from agentapp import config
from agentapp.cli import database
from agentapp.errors import StartError, StorageUnavailable
from agentapp.storage import schema
from agentapp.storage.vacuum import Vacuum


@click.group()
def db() -> None:
    """The database's schema."""


@db.command()
def upgrade() -> None:
    """Bring the database up to date. Does nothing if it is already."""
    try:
        database.upgrade(config.load())
    except StorageUnavailable as error:
        raise StartError(str(error)) from error
    click.echo(f"the database is at revision {schema.HEAD}")


@db.command()
def vacuum() -> None:
    """Free the room of what was deleted, and leave no copy of it in SQLite's file.

    SQLite's file is made anew: meanwhile others can read, but not write.
    """
    with database.open_database(config.load()) as found:
        click.echo(Vacuum(found).run().value)
