"""Breakers as an operator sees and sets them: what a list shows, as values; reset; force."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from agentapp.config import PROVIDERS
from agentapp.errors import NotFound
from agentapp.guardrails.cell import Cell, Cells, Key
from agentapp.guardrails.registry import Registry
from agentapp.guardrails.times import elapsed
from agentapp.storage.cells import CellStore, StoredCell

SCOPES = ("session", "user", "tenant", "provider")

Unit = Literal["tokens", "usd"]


@dataclass(frozen=True, slots=True)
class Shown:
    """One row of the list. Amounts are tokens or dollars, as ``unit`` says; moments are ISO 8601, UTC."""

    scope: str
    id: str
    name: str
    state: str
    failures: int
    trips: int
    opened_at: str | None
    retry_after: float | None
    cooldown: float
    probing: bool
    used: float
    limit: float | None
    unit: Unit
    reserved: float
    running: int
    rate_used: int
    tools: dict[str, int]
    updated_at: str


class Change(NamedTuple):
    key: Key
    was: str
    now: str


class Desk:
    """Where an operator looks at the cells and sets them. The rows are the truth, so whatever is set here
    is so in every worker at once.
    """

    def __init__(self, cells: Cells, store: CellStore, now: Callable[[], float] = time.time) -> None:
        self._cells, self._store, self._now = cells, store, now
        self._registry: Registry[Key, Cell] = Registry(cells, store)

    def listed(self, *, everything: bool = False) -> Iterator[Shown]:
        """Those that are not closed or have counted failures, or all."""
        for stored in self._store.listed(everything=everything):
            yield shown(stored, self._cells.load(stored.key, stored.state), self._now())

    def reset(self, scope: str, name: str) -> Change:
        """Closed, and the provider's outage forgotten; budgets and rates stay as they are."""
        return self._set(scope, name, _reset)

    def force(self, scope: str, name: str, state: Literal["open", "closed"]) -> Change:
        """Open or closed until it is reset."""
        return self._set(scope, name, lambda cell: replace(cell, breaker=cell.breaker.force(state)))

    def _set(self, scope: str, name: str, change: Callable[[Cell], Cell]) -> Change:
        key, before = self._key(scope, name), list[str]()

        def noted(cell: Cell) -> Cell:
            before.append(cell.breaker.state(self._now()))
            return change(cell)

        after = self._registry.update(key, noted)
        return Change(key, before[-1], after.breaker.state(self._now()))

    def _key(self, scope: str, name: str) -> Key:
        if scope not in SCOPES:
            raise NotFound(f"There are no breakers of a {scope!r}, only of a {', '.join(SCOPES)}.")
        if scope == "provider" and name in [provider.name for provider in PROVIDERS]:
            return Key(scope, name)
        key = self._store.key_of(scope, name)
        if key is None:
            raise NotFound(f"There is no {scope} {name!r}.")
        return key


def shown(stored: StoredCell, cell: Cell, now: float) -> Shown:
    breaker, budget = cell.breaker, cell.budget
    unit: Unit = "tokens" if stored.key.scope == "session" else "usd"
    limit, held = budget.allowance.limit, budget.holds
    probed = breaker.probed
    return Shown(
        *stored.key,
        name=stored.name,
        state=breaker.state(now),
        failures=breaker.failures,
        trips=breaker.trips,
        opened_at=None if breaker.opened is None else _moment(breaker.opened),
        retry_after=None if breaker.forced else breaker.wait(now),
        cooldown=breaker.cooldown,
        probing=probed is not None and elapsed(probed, now) < breaker.policy.lease,
        used=_in(unit, budget.used(now)),
        limit=None if limit is None else _in(unit, limit),
        unit=unit,
        reserved=_in(unit, held.amount(now)),
        running=max(holds.count(now) for holds in (held, cell.room.holds, cell.outage.running)),
        rate_used=cell.bucket.used(now),
        tools=dict(cell.tools),
        updated_at=_moment(stored.updated_at),
    )


def _reset(cell: Cell) -> Cell:
    if cell.breaker.is_unused and not cell.outage.slots:
        return cell
    return replace(cell, breaker=cell.breaker.reset(), outage=cell.outage.cleared())


def _in(unit: Unit, amount: int) -> float:
    return amount if unit == "tokens" else amount / 1_000_000


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
