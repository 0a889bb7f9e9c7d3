"""The `agentapp` command. Each command reads its options, calls what does the work, and prints.

There is one file for each command or group of commands, named like it. It is imported when the command is
used: `agentapp audit` needs neither Flask nor a database, and begins at once.

To add a command to a group: a function in the group's file. To add one at the top: a file, a name in
`COMMANDS`. Both have a row in docs/reference.md.
"""

from __future__ import annotations

import os
from importlib import import_module

import click

from agentapp import build
from agentapp.errors import AgentappError, SettingError, StartError
from agentapp.instance import PRIVATE_UMASK
from agentapp.logs import escaped
from agentapp.telemetry.log_setup import set_up

# Name and summary, as in the command's own help, which a test compares.
COMMANDS = (
    ("serve", "Bring the database up to date, then serve."),
    ("db", "The database as a whole: its schema, its room, a copy of it."),
    ("user", "Accounts."),
    ("breakers", "Breakers: of chat sessions, users, tenants and the model provider."),
    ("doctor", "Look at settings, database, model provider and machine, and say what to do."),
    (
        "cleanup",
        "Remove what is too old: chats, audit rows, ended logins, idle guardrail cells and the like.",
    ),
    ("audit", "Find state that requests share by mistake, in anybody's Python."),
)


class CommandOnDemand(click.Command):
    """Stands for a command in the overview, and imports it when it is used."""

    def load(self) -> click.Command:
        command = getattr(import_module(f"agentapp.cli.{self.name}"), str(self.name))
        assert isinstance(command, click.Command)  # noqa: S101 - for the type checker
        return command


class _PlainErrors(click.Group):
    """An error that we raise on purpose is one line for the person at the terminal, never a traceback.

    That holds for every command, so this group is also where commands are loaded on demand.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, CommandOnDemand) else command, rest

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AgentappError as exc:
            click.echo(f"agentapp: {escaped(str(exc))}", err=True)
            ctx.exit(2 if isinstance(exc, SettingError | StartError) else 1)


@click.group(
    cls=_PlainErrors,
    commands=[CommandOnDemand(name, help=summary) for name, summary in COMMANDS],
)
@click.version_option(build.NAME, prog_name="agentapp", message="%(prog)s %(version)s")
def main() -> None:
    """A multi-user chat-agent server."""
    os.umask(PRIVATE_UMASK)  # the database and the secret are for nobody else; gunicorn inherits it
    set_up()
