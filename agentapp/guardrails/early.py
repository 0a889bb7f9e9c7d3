"""Refusing early: by a copy of the cells that is quicker to ask than the store. It may be wrong in one way
only: for a moment it may refuse what the store would admit. It never admits anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from agentapp.guardrails import admission
from agentapp.guardrails.admission import MaxCost, TurnCells
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.outage import Person
from agentapp.guardrails.registry import Registry
from agentapp.isolation import Scope, UserScope

Clock = Callable[[], float]
Keys = Sequence[Key]


class HotCells(Protocol):
    def look(self, keys: Keys, scope: UserScope, message_key: str | None = None) -> Mapping[Key, str]:
        """The cells whose states are known to have been these a moment ago. None of a session that is not
        this scope's own, and none at all if a turn was begun with this ``message_key``: its sender is to be
        told of that one.
        """


class NoHotCells:
    def look(self, keys: Keys, scope: UserScope, message_key: str | None = None) -> Mapping[Key, str]:
        return {}


class EarlyRefusals:
    def __init__(self, registry: Registry[Key, Cell], hot: HotCells) -> None:
        self._registry, self._hot = registry, hot

    def raise_if_sure(
        self, keys: Keys, scope: Scope, message_key: str | None, max_cost: MaxCost, clock: Clock
    ) -> None:
        """Raise the `GuardrailRefused` that the store would raise. Who is not refused has to ask there."""
        found = self._hot.look(keys, scope, message_key)
        if not found:
            return
        cells = TurnCells(*(self._registry.decoded(key, found.get(key)) for key in keys))
        # What is not known refuses nobody. Whether a tenant's open breaker does depends on the provider's.
        if keys[3] not in found and cells.tenant.breaker.opened is not None:
            cells = cells._replace(tenant=self._registry.decoded(keys[2], None))
        admission.admit(cells, Person(scope.tenant_id, scope.user_id), max_cost, clock())

    def cells(self, keys: Keys, scope: UserScope) -> tuple[Cell, ...]:
        """For those who only look: from the copy if all are there, otherwise from the store."""
        found = self._hot.look(keys, scope)
        if all(key in found for key in keys):
            return tuple(self._registry.decoded(key, found[key]) for key in keys)
        return self._registry.look(keys)
