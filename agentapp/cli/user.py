"""`agentapp user`: accounts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import BinaryIO, cast

import click

from agentapp import config
from agentapp.cli.database import BY_COMMAND, open_accounts, open_database, upgrade
from agentapp.cli.user_import import import_people
from agentapp.errors import BadRequest
from agentapp.guardrails.cell import Cells
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.policies import cell_policies, longest_turn
from agentapp.guardrails.registry import Registry
from agentapp.isolation import RequestScope
from agentapp.storage import schema
from agentapp.storage.cells import CellStore
from agentapp.storage.retention_parts import make_all_chats, make_eraser
from agentapp.storage.turns import SqlTurnStore
from agentapp.storage.user_erasure import UserErasureStore
from agentapp.storage.vacuum import Vacuum, Vacuumed
from agentapp.storage.values import Role
from agentapp.telemetry import NullTelemetry
from agentapp.turns.ends import TurnEnds
from agentapp.turns.uncounted import UncountedTurns


@click.group()
def user() -> None:
    """Accounts."""


_password_stdin = click.option(
    "--password-stdin", is_flag=True, required=True, help="Read the password from the first line of stdin."
)


@user.command()
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="The organisation; made if new.")
@click.option(
    "--role", type=click.Choice(["member", "admin", "operator"]), default="member", show_default=True
)
@_password_stdin
def add(name: str, tenant: str, role: str, password_stdin: bool) -> None:
    """Make an account."""
    password, settings = _read_password(), config.load()
    if schema.is_missing(settings.database_url):
        upgrade(settings)
    with open_accounts(settings) as accounts:
        made = accounts.add(name, password, tenant=tenant, role=cast(Role, role), by=BY_COMMAND)
    click.echo(f"added {made.name} to {made.tenant} as {made.role}")


@user.command(name="import")
@click.argument("file", type=click.File("rb"), metavar="FILE.csv")
@click.option("--skip-existing", is_flag=True, help="Leave those who are there already as they are.")
@click.option("--must-change", is_flag=True, help="Passwords of the file, too, hold for one sign-in only.")
@click.option(
    "--passwords-out",
    type=click.Path(path_type=Path),
    metavar="OUT.csv",
    help="Where passwords that are made are written; otherwise they are printed.",
)
def import_(file: BinaryIO, skip_existing: bool, must_change: bool, passwords_out: Path | None) -> None:
    """Make many accounts at once, all of a file or none; - is standard input.

    The first line names the columns: name and, if you like, tenant, role and password. Without passwords
    each gets one that has to be changed at the first sign-in.
    """
    settings = config.load()
    if schema.is_missing(settings.database_url):
        upgrade(settings)
    with open_database(settings) as database:
        import_people(database, file, passwords_out, skip_existing=skip_existing, must_change=must_change)


@user.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def list_users(as_json: bool) -> None:
    """Show all accounts."""
    with open_accounts(config.load()) as accounts:
        users = accounts.all()
    if as_json:
        shown = [{"name": u.name, "tenant": u.tenant, "role": u.role, "disabled": u.disabled} for u in users]
        click.echo(json.dumps(shown, indent=2))
        return
    for u in users:
        click.echo("\t".join([u.name, u.tenant, u.role] + ["disabled"] * u.disabled))


@user.command()
@click.argument("name")
def disable(name: str) -> None:
    """Lock an account and end its logins. Its data stays."""
    with open_accounts(config.load()) as accounts:
        accounts.disable(name, BY_COMMAND)
    click.echo(f"disabled {name}")


@user.command()
@click.argument("name")
def enable(name: str) -> None:
    """Unlock an account."""
    with open_accounts(config.load()) as accounts:
        accounts.enable(name, BY_COMMAND)
    click.echo(f"enabled {name}")


@user.command()
@click.argument("name")
@_password_stdin
def set_password(name: str, password_stdin: bool) -> None:
    """Give an account a new password and end its logins."""
    password = _read_password()
    with open_accounts(config.load()) as accounts:
        accounts.set_password(name, password, BY_COMMAND)
    click.echo(f"changed the password of {name}")


@user.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@click.option("--no-vacuum", is_flag=True, help="Leave copies in SQLite's file to `agentapp db vacuum`.")
def erase(name: str, yes: bool, no_vacuum: bool) -> None:
    """Remove every trace of a user but audit rows, which keep an id. It cannot be undone.

    In a terminal it asks for the name again; a script means what it says.

    SQLite's file is made anew after it: meanwhile others can read, but not write.
    """
    settings = config.load()
    with open_database(settings) as database:
        found = UserErasureStore(database).named(name)
        if (
            not yes
            and _is_terminal()
            and click.prompt("All chats of this user go too. The name again", type=str) != name
        ):
            raise BadRequest("That is another name. Nothing was erased.")
        kind, cells = Cells(cell_policies(settings, longest_turn(settings))), CellStore(database)
        guardrails = Guardrails(Registry(kind, cells), settings.provider, database.clock.now)
        ends = TurnEnds(guardrails, NullTelemetry(), UncountedTurns())
        chats = make_all_chats(database, SqlTurnStore(database, cells), ends, cells)
        erased = make_eraser(database, chats, guardrails).erase(found, RequestScope(request_id="cli"))
        for table, count in erased.items():
            click.echo(f"{count:>9,}  {table}")
        click.echo(f"erased {found.name}, who is {found.id} in the audit log")
        click.echo((Vacuumed.LATER if no_vacuum else Vacuum(database).run()).value)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _read_password() -> str:
    """One line, of which only the line end is dropped: a password may begin or end with a space."""
    line = sys.stdin.buffer.readline() if sys.stdin else b""  # None if it was closed before the start
    try:
        password = line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadRequest("The password on standard input is not UTF-8 text.") from None
    if not password:
        raise BadRequest("There is no password on standard input.")
    return password
