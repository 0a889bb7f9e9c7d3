"""`agentapp cleanup`: removes what is too old."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from agentapp import config
from agentapp.cli.database import open_database
from agentapp.guardrails.cell import Cells
from agentapp.guardrails.policies import cell_policies, longest_turn
from agentapp.storage.cells import CellStore
from agentapp.storage.retention_parts import make_clean_up

LONGEST_REST_SECONDS = 1.0


@click.command()
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def cleanup(dry_run: bool) -> None:
    """Remove what is too old: chats, audit rows, ended logins, idle guardrail cells and the like.

    The server does the same by itself, every hour.
    """
    settings = config.load()
    with open_database(settings) as database, _interrupted() as asked_to_end:
        cell_kind = Cells(cell_policies(settings, longest_turn(settings)))
        clean_up = make_clean_up(database, settings, cell_kind, CellStore(database))
        tally, is_complete = clean_up.run(
            database.clock.utc_now(),
            dry_run=dry_run,
            is_over=asked_to_end.is_set,
            rest=lambda seconds: asked_to_end.wait(min(seconds, LONGEST_REST_SECONDS)),
        )
    word = "would remove" if dry_run else "removed"
    for kind, count in sorted(tally.by_kind().items()):
        click.echo(f"{word} {count:,} {kind}")
    if not is_complete:
        click.echo("interrupted: something may be left")
    elif not tally.by_kind():
        click.echo("nothing is too old")


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM: the step that is under way is done to its end."""
    asked = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
