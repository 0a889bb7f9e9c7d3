"""A user who is erased is named in no cell any more."""

from __future__ import annotations

from dataclasses import replace

from agentapp.config.providers import PROVIDERS
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.outage import Outage, Person
from agentapp.guardrails.registry import Registry
from agentapp.isolation import UserScope


def forget_failures(registry: Registry[Key, Cell], scope: UserScope) -> None:
    """The cells of tenants and providers remember to whom failures of the model happened."""
    who = Person(scope.tenant_id, scope.user_id)
    keys = [Key("tenant", scope.tenant_id), *(Key("provider", each.name) for each in PROVIDERS)]
    for key, cell in zip(keys, registry.look(keys), strict=True):
        if _names(cell.outage, who):
            registry.update(key, lambda found: replace(found, outage=found.outage.without(who)))


def _names(outage: Outage, who: Person) -> bool:
    return any(who == failed for _, _, bad in outage.slots for failed, _ in bad)
