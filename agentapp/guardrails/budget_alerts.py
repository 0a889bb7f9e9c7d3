"""Alerts for budgets that are nearly used up."""

from __future__ import annotations

from agentapp.guardrails.admission import TurnCells
from agentapp.guardrails.wording import dollars
from agentapp.isolation import Scope
from agentapp.telemetry import Telemetry

NEARLY = 0.9


def tell_of_budgets(
    telemetry: Telemetry, scope: Scope, before: TurnCells, after: TurnCells, now: float
) -> None:
    """If this change of the cells has taken the user's day or the tenant's month to 90 % of its limit. Cells
    are changed under a lock, so of all turns that end at once, in all workers, one does.
    """
    for whose, id, period in (("user", scope.user_id, "day"), ("tenant", scope.tenant_id, "month")):
        old, new = getattr(before, whose).budget, getattr(after, whose).budget
        if new is not old and new.passes(NEARLY, old, now):
            used, limit = dollars(new.used(now)), dollars(new.allowance.limit)
            telemetry.alert(
                "budget-90",
                f"{used} of the {limit} that this {whose} may spend in a {period} are used.",
                subject=f"{whose}:{id}:{new.period(now)}",
                tenant_id=scope.tenant_id,
            )
