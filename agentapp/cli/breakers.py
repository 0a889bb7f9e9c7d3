"""`agentapp breakers`: shows the breakers to an operator, and sets them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import click

from agentapp import config
from agentapp.cli.database import open_database
from agentapp.guardrails.cell import Cells
from agentapp.guardrails.operator import SCOPES, BreakerAdmin, BreakerRow, Change
from agentapp.guardrails.policies import cell_policies, longest_turn
from agentapp.guardrails.wording import clock, dollars
from agentapp.isolation import RequestScope
from agentapp.storage.breakers import SqlBreakerStore
from agentapp.storage.cells import CellStore
from agentapp.storage.hot_cells import find_hot_cells
from agentapp.storage.redis_choice import find_redis

COLUMNS = ("SCOPE", "ID", "NAME", "STATE", "FAILURES", "TRIPS", "TRY AGAIN IN", "USED")
NO_ROWS = "Every breaker is closed, and none has counted a failure."
NO_ROWS_OF_ALL = "There are no breakers yet."
ROWS_ALIGNED_TOGETHER = 1000  # a list may be longer than memory, so not all of its rows are aligned at once


class _ScopeAndId(click.ParamType[tuple[str, str]]):
    name = "SCOPE:ID"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        scope, _, name = str(value).partition(":")
        if not (scope and name and value.isprintable()):  # half of a surrogate pair is not printable either
            self.fail(f"{value!r} does not look like session:ID, user:NAME or provider:NAME.", param, ctx)
        return scope, name


_which = click.argument("which", metavar="SCOPE:ID", type=_ScopeAndId())
_reason = click.option("--reason", default="", help="Kept in the audit log.")
BY_COMMAND = RequestScope(request_id="cli")


@click.group()
def breakers() -> None:
    """Breakers: of chat sessions, users, tenants and the model provider."""


@breakers.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--all", "everything", is_flag=True, help="Also those that have nothing to tell.")
def list_breakers(as_json: bool, everything: bool) -> None:
    """Show the breakers that are not closed or have counted failures."""
    with _open_admin(config.load()) as admin:
        rows = admin.listed(everything=everything)
        if_none = NO_ROWS_OF_ALL if everything else NO_ROWS
        for line in json_lines(rows) if as_json else table_lines(rows, if_none):
            click.echo(line)


@breakers.command()
@_which
@_reason
def reset(which: tuple[str, str], reason: str) -> None:
    """Close a breaker and forget its failures, in every worker at once.

    SCOPE:ID is session:ID, user:NAME, tenant:NAME or provider:NAME; a user or tenant may also be
    given by its id. What is used of budgets and rates stays as it is.
    """
    with _open_admin(config.load()) as admin:
        _print_change(which, admin.reset(*which, by=BY_COMMAND, reason=reason))


@breakers.command()
@_which
@click.argument("state", type=click.Choice(["open", "closed"]))
@_reason
def force(which: tuple[str, str], state: str, reason: str) -> None:
    """Keep a breaker open or closed, whatever happens, until it is reset.

    An open one pauses that session, user, tenant or provider. SCOPE:ID is the same as for reset.
    """
    with _open_admin(config.load()) as admin:
        wanted = cast(Literal["open", "closed"], state)
        _print_change(which, admin.force(*which, wanted, by=BY_COMMAND, reason=reason))


@contextmanager
def _open_admin(settings: config.Settings) -> Iterator[BreakerAdmin]:
    with open_database(settings) as database:
        cells = Cells(cell_policies(settings, longest_turn(settings)))
        redis = find_redis(settings.redis_url, settings.secret_key)
        store = CellStore(database, find_hot_cells(redis, database.clock.now))
        yield BreakerAdmin(cells, SqlBreakerStore(database, store), database.clock.now)


def _print_change(which: tuple[str, str], change: Change) -> None:
    click.echo(f"{':'.join(which)} was {change.was}, is {change.now} now")


def json_lines(rows: Iterable[BreakerRow]) -> Iterator[str]:
    """The lines of one JSON list, with one row on each."""
    texts = (json.dumps({name: getattr(row, name) for name in row.__slots__}) for row in rows)
    last = next(texts, None)
    if last is None:
        yield "[]"
        return
    yield "["
    for text in texts:
        yield f"  {last},"
        last = text
    yield f"  {last}"
    yield "]"


def table_lines(rows: Iterable[BreakerRow], if_none: str) -> Iterator[str]:
    """The lines of a table, or one line if there is no row."""
    lines = itertools.chain([COLUMNS], map(_cells, rows))
    widths = [0] * len(COLUMNS)
    while block := list(itertools.islice(lines, ROWS_ALIGNED_TOGETHER)):
        if block == [COLUMNS]:
            yield if_none
            return
        widths = [
            max(width, *map(len, column))
            for width, column in zip(widths, zip(*block, strict=True), strict=True)
        ]
        for line in block:
            yield "  ".join(map(str.ljust, line, widths)).rstrip()


def _cells(row: BreakerRow) -> tuple[str, ...]:
    wait = "-" if row.retry_after is None else clock(row.retry_after)
    counts = (str(row.failures), str(row.trips))
    return (row.scope, row.id, row.name or "-", row.state, *counts, wait, _used(row))


def _used(row: BreakerRow) -> str:
    if row.scope == "provider" or row.scope not in SCOPES:
        return "-"
    limit = "no limit" if row.limit is None else _amount(row, row.limit)
    return f"{_amount(row, row.used)} of {limit}"


def _amount(row: BreakerRow, amount: float) -> str:
    return f"{amount:,.0f} tokens" if row.unit == "tokens" else dollars(round(amount * 1_000_000))
