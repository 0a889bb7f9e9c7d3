"""`agentapp user`: accounts."""

from __future__ import annotations

import json
import sys
from typing import cast

import click

from agentapp import config
from agentapp.cli.database import open_accounts, upgrade
from agentapp.errors import BadRequest
from agentapp.storage import schema
from agentapp.storage.values import Role


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
        made = accounts.add(name, password, tenant=tenant, role=cast(Role, role))
    click.echo(f"added {made.name} to {made.tenant} as {made.role}")


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
        accounts.disable(name)
    click.echo(f"disabled {name}")


@user.command()
@click.argument("name")
def enable(name: str) -> None:
    """Unlock an account."""
    with open_accounts(config.load()) as accounts:
        accounts.enable(name)
    click.echo(f"enabled {name}")


@user.command()
@click.argument("name")
@_password_stdin
def set_password(name: str, password_stdin: bool) -> None:
    """Give an account a new password and end its logins."""
    password = _read_password()
    with open_accounts(config.load()) as accounts:
        accounts.set_password(name, password)
    click.echo(f"changed the password of {name}")


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
