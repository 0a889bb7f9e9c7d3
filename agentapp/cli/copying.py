"""What `agentapp db copy` shows: how far it is, and then both databases side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click

from agentapp.storage.copying.database_copy import Compared, DatabaseCopy
from agentapp.storage.copying.places import Database
from agentapp.storage.copying.tables import DECISIONS

INTERRUPTED = 130  # the exit code of whatever Ctrl-C has ended
WIDTH = max(map(len, DECISIONS))


def copy(source: Database, target: Database, *, restart: bool) -> None:
    copying = DatabaseCopy(source, target)
    try:
        goes_on = copying.begin(restart=restart)
        word = "going on with the copy" if goes_on else "copying"
        click.echo(f"{word} from {source.name} to {target.name}")
        _copy_rows(copying)
        copying.finish(list(_compared(copying)))
    except KeyboardInterrupt:
        click.echo("interrupted: the same command goes on from here", err=True)
        sys.exit(INTERRUPTED)
    finally:
        source.engine.dispose()
        target.engine.dispose()
    click.echo(f"all of it is in {target.name} now: set AGENTAPP_DATABASE_URL to it, and keep the secret")


def _copy_rows(copying: DatabaseCopy) -> None:
    began, copied = time.monotonic(), 0
    wanted, there = copying.count()
    if sys.stderr.isatty():
        with click.progressbar(
            length=wanted, label="copying", show_pos=True, item_show_func=_shown, file=sys.stderr
        ) as bar:
            bar.update(there)
            for table, rows in copying.copy():
                copied += rows
                bar.update(rows, table)
    else:
        for table, rows in _by_table(copying.copy()):
            copied += rows
            click.echo(f"copied {rows:>11,}  {table}")
    seconds = max(time.monotonic() - began, 0.001)
    click.echo(f"copied {copied:,} rows in {seconds:.1f} s, {copied / seconds:,.0f} a second")


def _shown(table: str | None) -> str:
    return table or ""


def _by_table(batches: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """One sum for all batches of a table."""
    table, rows = "", 0
    for of_table, count in batches:
        if of_table != table and table:
            yield table, rows
            rows = 0
        table, rows = of_table, rows + count
    if table:
        yield table, rows


def _compared(copying: DatabaseCopy) -> Iterator[Compared]:
    click.echo(f"{'table':<{WIDTH}}  {'FROM':>11}  {'TO':>11}  checksum")
    for each in copying.compare():
        word = "equal" if each.is_equal else "DIFFERENT"
        click.echo(f"{each.table:<{WIDTH}}  {each.source_rows:>11,}  {each.target_rows:>11,}  {word}")
        yield each
    left = [name for name, decision in DECISIONS.items() if decision == "left"]
    click.echo(f"not copied, since it is about the processes that served FROM: {', '.join(left)}")
