"""`agentapp db`: the database's schema."""

from __future__ import annotations

import click

from agentapp import config
from agentapp.cli import database
from agentapp.storage import schema


@click.group()
def db() -> None:
    """The database's schema."""


@db.command()
def upgrade() -> None:
    """Bring the database up to date. Does nothing if it is already."""
    database.upgrade(config.load())
    click.echo(f"the database is at revision {schema.HEAD}")
