"""`agentapp serve`: checks the settings and the port, then becomes gunicorn, which has `prepare` called.

The database is left to that, because gunicorn's master imports what is needed for it in any case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from agentapp import build, config
from agentapp.parsing import settings_of
from agentapp.server import options, resources


def _option(name: str, metavar: str, text: str) -> Callable[[Any], Any]:
    """An option in place of a variable. Its help names the variable and the default."""
    declared = settings_of(options.ServerOptions)[name]
    return click.option(
        f"--{name}", metavar=metavar, help=f"{text} [{declared.variable}, {declared.default}]"
    )


@click.command()
@_option("bind", "HOST:PORT", "Where to listen.")
@_option("workers", "N", "Processes.")
@_option("threads", "N", "Threads in each process.")
def serve(bind: str | None, workers: str | None, threads: str | None) -> None:
    """Bring the database up to date, then serve."""
    chosen = options.load(options={"bind": bind, "workers": workers, "threads": threads})
    config.load(bind=chosen.bind)
    # Before anything is changed: if another server has the port, its database must not change under it.
    options.check_free(chosen.bind)
    _become_gunicorn(chosen)


def prepare() -> None:
    """Bring the database up to date, once it is there, and print where the server is. In a child of
    gunicorn's master, so that nothing stays open.
    """
    from agentapp.cli.database import open_accounts, upgrade
    from agentapp.cli.waiting import wait_for_database

    def upgraded_and_token() -> str | None:
        upgrade(settings)
        with open_accounts(settings) as accounts:
            return accounts.new_setup_token()

    chosen = options.load()
    settings = config.load(bind=chosen.bind)
    token = wait_for_database(upgraded_and_token)
    url = options.url_of(chosen.bind, https=settings.https, hosts=settings.hosts)
    model = "demo model" if settings.provider == "demo" else settings.model
    click.echo(f"agentapp {build.NAME} on {url} ({model})")
    if token:
        click.echo(f"Make the first account: {url}/setup?token={token}")


def _become_gunicorn(chosen: options.ServerOptions) -> None:
    """This process from now on, so that a signal sent to it reaches the server. No open file is kept."""
    command = [sys.executable, "-m", "gunicorn", "-c", str(resources.gunicorn_config())]
    variables = {**os.environ, **chosen.environ(), options.STARTED_BY_SERVE: "1"}
    os.execve(sys.executable, [*command, "agentapp.app:create_app()"], variables)  # noqa: S606
