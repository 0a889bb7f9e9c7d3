"""The guardrails of a server: the registry of all cells, and what a turn asks of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentapp.errors import GuardrailRefused
from agentapp.events import TurnResult
from agentapp.guardrails import admission
from agentapp.guardrails.admission import MaxCost, Reservation, TurnCells
from agentapp.guardrails.budget import Budget
from agentapp.guardrails.budget_alerts import NearlyUsed, nearly_used
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.changes import BreakerRows, Settled, settled
from agentapp.guardrails.early import EarlyRefusals, HotCells, NoHotCells
from agentapp.guardrails.outage import Person
from agentapp.guardrails.registry import Registry, Rows
from agentapp.isolation import Scope, UserScope


class Admitted(NamedTuple):
    """A turn that was admitted: what it reserved, and how often its session has called each tool so far."""

    reservation: Reservation
    tool_calls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of a budget is used."""

    scope: str
    used: int
    limit: int
    resets_in: float | None

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Why the next message of a chat would be refused, if it would, and the budgets, the tightest first."""

    refusal: GuardrailRefused | None
    half_open: bool
    meters: tuple[Meter, ...]


class Guardrails:
    """Lives as long as the process. Everything it decides by is in the rows."""

    def __init__(
        self,
        registry: Registry[Key, Cell],
        provider: str,
        clock: Callable[[], float],
        hot: HotCells | None = None,
    ) -> None:
        self.registry, self.clock = registry, clock
        self._provider = provider
        self._early = EarlyRefusals(registry, hot or NoHotCells())
        self._succeeded = _Count()  # turns that the provider's breaker was not told about yet

    def admit(self, rows: Rows[Key], scope: Scope, max_cost: MaxCost) -> Admitted:
        """Admit a turn, inside the transaction that begins it, or raise `GuardrailRefused`."""
        made: list[Reservation] = []

        def change(cells: TurnCells, now: float) -> TurnCells:
            after, reservation = admission.admit(cells, _person(scope), max_cost, now)
            made.append(reservation)
            return after

        after = self._change(rows, scope, change, needs_provider=lambda cell: not admission.is_calm(cell))
        return Admitted(made[-1], after.session.tools)

    def refuse_early(self, scope: Scope, message_key: str | None, max_cost: MaxCost) -> None:
        """Before any transaction: raise what `admit` would, if that is sure without one."""
        self._early.raise_if_sure(self.keys(scope), scope, message_key, max_cost, self.clock)

    def settle(
        self,
        rows: BreakerRows,
        scope: Scope,
        reservation: Reservation,
        result: TurnResult,
        running: Callable[[], int] = lambda: 0,
    ) -> Settled:
        """Give back what the turn reserved, count what it used and tell the breakers how it ended. Exactly
        once for each turn, by whoever ends it. ``running`` tells how many other turns run.
        """
        told: list[bool] = []
        found = Settled()

        def concerns_everybody(provider: Cell) -> bool:
            told.append(admission.concerns_everybody(provider, result))
            return told[-1]

        def change(cells: TurnCells, now: float) -> TurnCells:
            nonlocal found
            others = running() if told[-1] else 0
            if told[-1]:
                cells = cells._replace(provider=self._with_counted(cells.provider, now))
            after = admission.settle(cells, reservation, _person(scope), result, now, others)
            found = replace(
                settled(self.keys(scope), cells, after), nearly_used=nearly_used(scope, cells, after, now)
            )
            return after

        self._change(rows, scope, change, needs_provider=concerns_everybody)
        for each in found.changes:
            rows.record_breaker(each, scope)
        if result.verdict == "succeeded" and not told[-1]:
            self._succeeded.add(1)
        return found

    def count_succeeded(self) -> None:
        """Tell the provider's breaker how many turns of this process succeeded since it was told last. A turn
        need not wait for that row, because all turns of all users would.
        """
        if not self._succeeded.total:
            return
        self.registry.update(
            Key("provider", self._provider), lambda cell: self._with_counted(cell, self.clock())
        )

    def _with_counted(self, provider: Cell, now: float) -> Cell:
        return admission.counted(provider, self._succeeded.take(), now)

    def charge(
        self, rows: Rows[Key], scope: Scope, result: TurnResult, reservation: Reservation | None = None
    ) -> Sequence[NearlyUsed]:
        """For a turn that went on spending after its reservation was given back."""
        begun = reservation.begun if reservation else None
        found: list[NearlyUsed] = []

        def change(cells: TurnCells, now: float) -> TurnCells:
            after = admission.charge(cells, result, now, begun)
            found[:] = nearly_used(scope, cells, after, now)
            return after

        self._change(rows, scope, change)
        return found

    def standing(self, scope: Scope, max_cost: MaxCost) -> Standing:
        """The decision that the next message would get, without taking anything."""
        now = self.clock()
        cells = TurnCells(*self._early.cells(self.keys(scope), scope))
        refusal = None
        try:
            admission.admit(cells, _person(scope), max_cost, now)
        except GuardrailRefused as error:
            refusal = error
        budgets = list(zip(("session", "user", "tenant"), (cell.budget for cell in cells[:3]), strict=True))
        meters = sorted(_meters(budgets, now), key=lambda meter: -meter.share)
        return Standing(refusal, cells.session.breaker.state(now) == "half-open", tuple(meters))

    def meters(self, scope: UserScope) -> list[Meter]:
        """The budgets of the user and of the tenant."""
        keys = Key("user", scope.user_id), Key("tenant", scope.tenant_id)
        user, tenant = self._early.cells(keys, scope)
        return _meters([("user", user.budget), ("tenant", tenant.budget)], self.clock())

    def keys(self, scope: Scope) -> tuple[Key, Key, Key, Key]:
        return (
            Key("session", scope.session_id),
            Key("user", scope.user_id),
            Key("tenant", scope.tenant_id),
            Key("provider", self._provider),
        )

    def _change(
        self,
        rows: Rows[Key],
        scope: Scope,
        change: Callable[[TurnCells, float], TurnCells],
        needs_provider: Callable[[Cell], bool] = lambda provider: False,
    ) -> TurnCells:
        """The clock is read only after the rows were locked. A transaction may wait long for them. With an
        earlier time, what others wrote meanwhile would lie in the future, as if the clock had been put back.

        The provider's row is locked only if the change needs it, as that cell is now.
        """
        *own, provider = self.keys(scope)

        def with_provider_seen(cells: tuple[Cell, ...]) -> TurnCells:
            if needs_provider(cells[3]):
                raise _NeedsProvider
            return change(TurnCells(*cells), self.clock())

        def with_provider_locked(cells: tuple[Cell, ...]) -> TurnCells:
            needs_provider(cells[3])
            return change(TurnCells(*cells), self.clock())

        try:
            after = self.registry.change(rows, own, with_provider_seen, seen=(provider,))
        except _NeedsProvider:
            after = self.registry.change(rows, (*own, provider), with_provider_locked)
        return TurnCells(*after)


class _NeedsProvider(Exception):
    """The provider's row has to be locked too."""


class _Count:
    """How many there were since it was taken last."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.total += count

    def take(self) -> int:
        with self._lock:
            taken, self.total = self.total, 0
        return taken


def _person(scope: Scope) -> Person:
    return Person(scope.tenant_id, scope.user_id)


def _meters(budgets: Sequence[tuple[str, Budget]], now: float) -> list[Meter]:
    return [
        Meter(scope, budget.used(now), budget.allowance.limit, budget.resets_in(now))
        for scope, budget in budgets
        if budget.allowance.limit is not None
    ]
