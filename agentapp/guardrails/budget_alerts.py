"""Budgets that are nearly used up, of which somebody is to be told before they are."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.guardrails.admission import TurnCells
from agentapp.guardrails.wording import dollars
from agentapp.isolation import Scope
from agentapp.telemetry import Telemetry

NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class NearlyUsed:
    """``subject`` names the owner and the day or month."""

    subject: str
    detail: str
    tenant_id: str

    def tell(self, telemetry: Telemetry) -> None:
        telemetry.alert("budget-90", self.detail, subject=self.subject, tenant_id=self.tenant_id)


def nearly_used(scope: Scope, before: TurnCells, after: TurnCells, now: float) -> tuple[NearlyUsed, ...]:
    """The budgets that this change of the cells has taken to 90 % of their limit: the user's of the day, the
    tenant's of the month. Cells are changed under a lock, so of all turns that end at once, in all workers,
    one does.
    """
    found = []
    for whose, id, period in (("user", scope.user_id, "day"), ("tenant", scope.tenant_id, "month")):
        old, new = getattr(before, whose).budget, getattr(after, whose).budget
        if new is not old and new.passes(NEARLY, old, now):
            used, limit = dollars(new.used(now)), dollars(new.allowance.limit)
            detail = f"{used} of the {limit} that this {whose} may spend in a {period} are used."
            found.append(NearlyUsed(f"{whose}:{id}:{new.period(now)}", detail, scope.tenant_id))
    return tuple(found)
