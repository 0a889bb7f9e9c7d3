"""The guardrails of a server: the registry of all cells, and what a turn asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agentapp.errors import GuardrailRefused
from agentapp.guardrails import admission
from agentapp.guardrails.admission import Four, Outcome, Pass, Wish
from agentapp.guardrails.budget import Budget
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.registry import Registry, Rows
from agentapp.isolation import Scope


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
    """How a chat stands: what its next message would be refused for, and the budgets, the tightest first."""

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

    def admit(self, rows: Rows[Key], scope: Scope, wish: Wish) -> tuple[Pass, tuple[tuple[str, int], ...]]:
        """Let a turn in, inside the transaction that begins it, or raise `GuardrailRefused`.

        Beside the pass come the calls that the session's tools have had so far.
        """
        let_in: list[Pass] = []

        def change(cells: tuple[Cell, ...]) -> Four:
            # The time is asked for only now, with the rows in hand: to one who waited for them long,
            # what others wrote meanwhile would lie ahead, as if the clock had been put back.
            after, ticket = admission.admit(Four(*cells), wish, self.clock())
            let_in.append(ticket)
            return after

        after = self.registry.change(rows, self.keys(scope), change)
        return let_in[0], after[0].tools

    def settle(self, rows: Rows[Key], scope: Scope, ticket: Pass, end: Outcome) -> None:
        self.registry.change(
            rows,
            self.keys(scope),
            lambda cells: admission.settle(Four(*cells), ticket, scope.user_id, end, self.clock()),
        )

    def withdraw(self, rows: Rows[Key], scope: Scope, ticket: Pass) -> None:
        """For a turn of which nobody heard again: exactly once, when it is marked as such."""
        self.registry.change(
            rows, self.keys(scope), lambda cells: admission.withdraw(Four(*cells), ticket, self.clock())
        )

    def charge(self, rows: Rows[Key], scope: Scope, end: Outcome) -> None:
        """For a turn that went on spending after it was withdrawn."""
        self.registry.change(
            rows, self.keys(scope), lambda cells: admission.charge(Four(*cells), end, self.clock())
        )

    def standing(self, scope: Scope, wish: Wish) -> Standing:
        """The decision that the next message would get, without taking anything."""
        now = self.clock()
        cells = Four(*self.registry.look(self.keys(scope)))
        refusal = None
        try:
            admission.admit(cells, wish, now)
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


def _meters(cells: Four, now: float) -> list[Meter]:
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
