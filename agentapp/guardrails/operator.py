"""Breakers as an operator sees and sets them: the rows of the list, reset, force; and the list as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol

from agentapp.config import PROVIDERS
from agentapp.errors import NotFound
from agentapp.guardrails.cell import Cell, Cells, Key
from agentapp.guardrails.registry import Registry, Store
from agentapp.guardrails.times import elapsed

SCOPES = ("session", "user", "tenant", "provider")

Unit = Literal["tokens", "usd"]


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell as it is stored. ``name`` is the name of the user or tenant. For a session it is the owner's
    name, because the title of a chat is for its owner alone. ``running`` is how many turns run, if that is
    not in the cell: no turn writes to the cell of the provider.
    """

    key: Key
    name: str
    state: str
    updated_at: float
    running: int = 0


class BreakerStore(Store[Key], Protocol):
    def listed(self, *, everything: bool = False) -> Iterator[StoredCell]:
        """The cells whose breakers are not closed or have counted failures, or all cells."""

    def key_of(self, scope: str, name: str) -> Key | None:
        """The key for an id or a name; None if there is nothing of that id or name."""


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """One row of the list. Amounts are tokens or dollars, as ``unit`` says; times are ISO 8601, UTC."""

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


class BreakerAdmin:
    """Lists breakers and sets them. The rows are the truth, so every worker sees at once what is set here."""

    def __init__(self, cells: Cells, store: BreakerStore, now: Callable[[], float] = time.time) -> None:
        self._cells, self._store, self._now = cells, store, now
        self._registry: Registry[Key, Cell] = Registry(cells, store)

    def listed(self, *, everything: bool = False) -> Iterator[BreakerRow]:
        """The breakers that are not closed or have counted failures, or all."""
        for stored in self._store.listed(everything=everything):
            yield breaker_row(stored, self._cells.load(stored.key, stored.state), self._now())

    def reset(self, scope: str, name: str) -> Change:
        """Close the breaker, and forget the failures that opened it. Budgets and rates stay as they are.

        Closing the provider's closes it for every tenant too.
        """
        change = self._set(scope, name, _reset)
        if scope == "provider":
            for stored in list(self._store.listed()):
                if stored.key.scope == "tenant":
                    self._registry.update(stored.key, _with_model_allowed)
        return change

    def force(self, scope: str, name: str, state: Literal["open", "closed"]) -> Change:
        """Open or close the breaker until it is reset."""
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


def breaker_row(stored: StoredCell, cell: Cell, now: float) -> BreakerRow:
    breaker, budget = cell.breaker, cell.budget
    unit: Unit = "tokens" if stored.key.scope == "session" else "usd"
    limit, held = budget.allowance.limit, budget.holds
    probed = breaker.probed
    return BreakerRow(
        *stored.key,
        name=stored.name,
        state=breaker.state(now),
        failures=breaker.failures,
        trips=breaker.trips,
        opened_at=None if breaker.opened is None else _iso(breaker.opened),
        retry_after=None if breaker.forced else breaker.wait(now),
        cooldown=breaker.cooldown,
        probing=probed is not None and elapsed(probed, now) < breaker.policy.lease,
        used=_in(unit, budget.used(now)),
        limit=None if limit is None else _in(unit, limit),
        unit=unit,
        reserved=_in(unit, held.amount(now)),
        running=max(held.count(now), cell.bulkhead.holds.count(now), stored.running),
        rate_used=cell.bucket.used(now),
        tools=dict(cell.tools),
        updated_at=_iso(stored.updated_at),
    )


def _reset(cell: Cell) -> Cell:
    if cell.breaker.is_unused and not cell.outage.slots:
        return cell
    return replace(cell, breaker=cell.breaker.reset(), outage=cell.outage.cleared())


def _with_model_allowed(tenant: Cell) -> Cell:
    """A tenant that an operator has paused stays paused."""
    return tenant if tenant.breaker.forced else _reset(tenant)


def _in(unit: Unit, amount: int) -> float:
    return amount if unit == "tokens" else amount / 1_000_000


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
