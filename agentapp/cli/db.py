"""`agentapp db`: the database as a whole."""

from __future__ import annotations

import click

from agentapp import config
from agentapp.cli import copying, database
from agentapp.errors import StartError, StorageUnavailable
from agentapp.storage import schema
from agentapp.storage.copying.places import named
from agentapp.storage.vacuum import Vacuum


@click.group()
def db() -> None:
    """The database as a whole: its schema, its room, a copy of it."""


@db.command()
def upgrade() -> None:
    """Bring the database up to date. Does nothing if it is already."""
    try:
        revision = database.upgrade(config.load())
    except StorageUnavailable as error:
        raise StartError(str(error)) from error
    click.echo(f"the database is at revision {schema.described(revision)}")


@db.command()
def vacuum() -> None:
    """Free the room of what was deleted, and leave no copy of it in SQLite's file.

    SQLite's file is made anew: meanwhile others can read, but not write.
    """
    with database.open_database(config.load()) as found:
        click.echo(Vacuum(found).run().value)


@db.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--restart", is_flag=True, help="Take out what an interrupted copy has put into TO, and begin anew."
)
def copy(source: str, target: str, restart: bool) -> None:
    """Copy everything from one database into another, empty one: SQLite to PostgreSQL, or back.

    FROM and TO are URLs as in AGENTAPP_DATABASE_URL, or the path of SQLite's file. Stop all servers on FROM
    first. It may be interrupted: the same command then goes on. At the end both are read again and compared;
    until all is equal no server starts on TO.
    """
    copying.copy(named("FROM", source), named("TO", target), restart=restart)
