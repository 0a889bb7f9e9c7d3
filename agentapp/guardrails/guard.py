"""The guardrails of a server: the registry of all cells, and what a turn asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agentapp.errors import GuardrailRefused
from agentapp.events import TurnResult
from agentapp.guardrails import admission
from agentapp.guardrails.admission import MaxCost, Reservation, TurnCells
from agentapp.guardrails.budget import Budget
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.outage import Person
from agentapp.guardrails.registry import Registry, Rows
from agentapp.isolation import Scope


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
        self, registry: Registry[Key, Cell], provider: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.registry, self.clock = registry, clock
        self._provider = provider

    def admit(self, rows: Rows[Key], scope: Scope, max_cost: MaxCost) -> Admitted:
        """Admit a turn, inside the transaction that begins it, or raise `GuardrailRefused`."""
        made: list[Reservation] = []

        def change(cells: TurnCells, now: float) -> TurnCells:
            after, reservation = admission.admit(cells, _person(scope), max_cost, now)
            made.append(reservation)
            return after

        after = self._change(rows, scope, change)
        return Admitted(made[0], after.session.tools)

    def settle(self, rows: Rows[Key], scope: Scope, reservation: Reservation, result: TurnResult) -> None:
        """Give back what the turn reserved, count what it used and tell the breakers how it ended. Exactly
        once for each turn, by whoever ends it.
        """
        self._change(
            rows,
            scope,
            lambda cells, now: admission.settle(cells, reservation, _person(scope), result, now),
        )

    def charge(
        self, rows: Rows[Key], scope: Scope, result: TurnResult, reservation: Reservation | None = None
    ) -> None:
        """For a turn that went on spending after its reservation was given back."""
        begun = reservation.begun if reservation else None
        self._change(rows, scope, lambda cells, now: admission.charge(cells, result, now, begun))

    def standing(self, scope: Scope, max_cost: MaxCost) -> Standing:
        """The decision that the next message would get, without taking anything."""
        now = self.clock()
        cells = TurnCells(*self.registry.look(self.keys(scope)))
        refusal = None
        try:
            admission.admit(cells, _person(scope), max_cost, now)
        except GuardrailRefused as error:
            refusal = error
        meters = sorted(_meters(cells, now), key=lambda meter: -meter.share)
        return Standing(refusal, cells.session.breaker.state(now) == "half-open", tuple(meters))

    def keys(self, scope: Scope) -> tuple[Key, Key, Key, Key]:
        return (
            Key("session", scope.session_id),
            Key("user", scope.user_id),
            Key("tenant", scope.tenant_id),
            Key("provider", self._provider),
        )

    def _change(
        self, rows: Rows[Key], scope: Scope, change: Callable[[TurnCells, float], TurnCells]
    ) -> TurnCells:
        """The clock is read only after the rows were locked. A transaction may wait long for them. With an
        earlier time, what others wrote meanwhile would lie in the future, as if the clock had been put back.
        """
        after = self.registry.change(
            rows, self.keys(scope), lambda cells: change(TurnCells(*cells), self.clock())
        )
        return TurnCells(*after)


def _person(scope: Scope) -> Person:
    return Person(scope.tenant_id, scope.user_id)


def _meters(cells: TurnCells, now: float) -> list[Meter]:
    budgets: list[tuple[str, Budget]] = [
        ("session", cells.session.budget),
        ("user", cells.user.budget),
        ("tenant", cells.tenant.budget),
    ]
    return [
        Meter(scope, budget.used(now), budget.allowance.limit, budget.resets_in(now))
        for scope, budget in budgets
        if budget.allowance.limit is not None
    ]
