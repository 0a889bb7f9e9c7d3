"""Breakers as those see and set them who look after the server: rows of lists, reset, force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol

from agentapp.config import PROVIDERS
from agentapp.errors import BadRequest, Forbidden, NotFound
from agentapp.guardrails.cell import Cell, Cells, Key
from agentapp.guardrails.registry import Registry, Rows, Store
from agentapp.guardrails.times import elapsed
from agentapp.isolation import RequestScope

SCOPES = ("session", "user", "tenant", "provider")
MAX_REASON_CHARS = 200

Unit = Literal["tokens", "usd"]
Mark = Literal["open", "forced", "failing"]  # as `Breaker.mark` says


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell as it is stored; without a ``state`` if there is none yet. ``name`` is the name of the user or
    tenant. For a session it is the owner's name, because the title of a chat is for its owner alone.
    ``tenant_id`` is whose admins may see it; None is nobody's. ``running`` is how many turns run, if that is
    not in the cell: no turn writes to the cell of the provider.
    """

    key: Key
    name: str
    state: str
    updated_at: float
    running: int = 0
    tenant_id: str | None = None


class Change(NamedTuple):
    """What was done to a breaker, and why as far as somebody has said it."""

    action: Literal["breaker-reset", "breaker-forced"]
    key: Key
    tenant_id: str | None
    was: str
    now: str
    reason: str


class ForcedBy(NamedTuple):
    """Who forced a breaker, and why. ``name`` is empty if the one who looks may not know."""

    at: datetime
    name: str
    reason: str


class BreakerRows(Rows[Key], Protocol):
    def record(self, change: Change, by: RequestScope) -> None:
        """Write it into the audit log, as part of the transaction."""


class BreakerStore(Store[Key], Protocol):
    """``tenant_id`` is whose breakers are to be found; None is everybody's."""

    def transaction(self) -> AbstractContextManager[BreakerRows]: ...

    def listed(self, *, everything: bool = False) -> Iterator[StoredCell]:
        """The cells whose breakers are not closed or have counted failures, or all cells."""

    def page(self, mark: Mark, tenant_id: str | None, after: Key | None, count: int) -> Sequence[StoredCell]:
        """Those with this mark, beginning after that one. Whose chats or users are gone are left out."""

    def find(self, scope: str, name: str, tenant_id: str | None) -> StoredCell | None:
        """By an id or a name; None if there is nothing of that id or name."""

    def forced_by(self, keys: Sequence[Key], tenant_id: str | None) -> Mapping[Key, ForcedBy]: ...


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


@dataclass(frozen=True, slots=True)
class BreakerView:
    """A breaker on the admin pages. ``threshold`` is how many failures in a row open it."""

    row: BreakerRow
    tenant_id: str | None
    threshold: int
    forced_by: ForcedBy | None = None

    @property
    def key(self) -> Key:
        return Key(self.row.scope, self.row.id)


class BreakerAdmin:
    """Lists breakers and sets them. The rows are the truth, so every worker sees at once what is set here.

    A ``tenant_id`` that is not None is that of an admin, who sees and sets the breakers of this tenant alone.
    """

    def __init__(self, cells: Cells, store: BreakerStore, now: Callable[[], float]) -> None:
        self._cells, self._store, self._now = cells, store, now
        self._registry: Registry[Key, Cell] = Registry(cells, store)

    def listed(self, *, everything: bool = False) -> Iterator[BreakerRow]:
        """The breakers that are not closed or have counted failures, or all."""
        for stored in self._store.listed(everything=everything):
            yield breaker_row(stored, self._cells.load(stored.key, stored.state), self._now())

    def page(self, mark: Mark, tenant_id: str | None, after: Key | None, count: int) -> list[BreakerView]:
        return self._views(self._store.page(mark, tenant_id, after, count), tenant_id)

    def find(self, scope: str, name: str, tenant_id: str | None) -> BreakerView:
        return self._views([self._stored(scope, name, tenant_id)], tenant_id)[0]

    def reset(
        self, scope: str, name: str, by: RequestScope, reason: str = "", tenant_id: str | None = None
    ) -> Change:
        """Close the breaker, and forget the failures that opened it. Budgets and rates stay as they are.

        Closing the provider's closes it for every tenant too.
        """
        stored = self._stored(scope, name, tenant_id)

        def changed(cell: Cell) -> Cell:
            if tenant_id is not None and scope == "tenant" and cell.breaker.forced:
                raise Forbidden("An operator has set this one, and only an operator can reset it.")
            return _reset(cell)

        change = self._set(stored, "breaker-reset", changed, by, reason)
        if scope == "provider":
            for each in list(self._store.listed()):
                if each.key.scope == "tenant":
                    each = replace(each, tenant_id=each.key.id)
                    self._set(each, "breaker-reset", _with_model_allowed, by, reason)
        return change

    def force(
        self,
        scope: str,
        name: str,
        state: Literal["open", "closed"],
        by: RequestScope,
        reason: str = "",
        tenant_id: str | None = None,
    ) -> Change:
        """Open or close the breaker until it is reset."""
        if tenant_id is not None and scope == "tenant":
            raise Forbidden("Only an operator can pause a whole organisation.")
        stored = self._stored(scope, name, tenant_id)

        def changed(cell: Cell) -> Cell:
            return replace(cell, breaker=cell.breaker.force(state))

        return self._set(stored, "breaker-forced", changed, by, reason)

    def _set(
        self,
        stored: StoredCell,
        action: Literal["breaker-reset", "breaker-forced"],
        change: Callable[[Cell], Cell],
        by: RequestScope,
        reason: str,
    ) -> Change:
        reason, key = checked_reason(reason), stored.key
        before: list[Cell] = []

        def noted(values: tuple[Cell, ...]) -> Sequence[Cell]:
            before[:] = values
            return [change(values[0])]

        with self._store.transaction() as rows:
            (after,) = self._registry.change(rows, (key,), noted)
            was, now = (cell.breaker.state(self._now()) for cell in (before[0], after))
            made = Change(action, key, stored.tenant_id, was, now, reason)
            if after is not before[0]:
                rows.record(made, by)
        return made

    def _views(self, stored: Sequence[StoredCell], tenant_id: str | None) -> list[BreakerView]:
        cells = [
            self._cells.load(each.key, each.state) if each.state else self._cells.fresh(each.key)
            for each in stored
        ]
        pairs = list(zip(stored, cells, strict=True))
        forced = [each.key for each, cell in pairs if cell.breaker.forced]
        forced_by = self._store.forced_by(forced, tenant_id) if forced else {}
        return [
            BreakerView(
                breaker_row(each, cell, self._now()),
                each.tenant_id,
                cell.breaker.policy.failures,
                forced_by.get(each.key),
            )
            for each, cell in pairs
        ]

    def _stored(self, scope: str, name: str, tenant_id: str | None) -> StoredCell:
        if scope not in SCOPES:
            raise NotFound(f"There are no breakers of a {scope!r}, only of a {', '.join(SCOPES)}.")
        found = self._store.find(scope, name, tenant_id)
        if found is None and tenant_id is None and scope == "provider" and name in _PROVIDER_NAMES:
            return StoredCell(Key(scope, name), "", "", 0.0)
        if found is None:
            raise NotFound(f"There is no {scope} {name!r}.")
        return found


def checked_reason(reason: str) -> str:
    """As it is kept in the audit log."""
    reason = reason.strip()
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise BadRequest(f"A reason has at most {MAX_REASON_CHARS} characters, on one line.")
    return reason


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


_PROVIDER_NAMES = tuple(provider.name for provider in PROVIDERS)


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
