"""One decision over session, user, tenant and provider: admit a turn, settle it, give back what it took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agentapp.errors import GuardrailRefused
from agentapp.events import TurnResult, Verdict
from agentapp.guardrails.breaker import Breaker
from agentapp.guardrails.cell import Cell
from agentapp.guardrails.holds import Hold
from agentapp.guardrails.outage import Outage
from agentapp.guardrails.wording import stamp_refusal

NO_GENERATION = -1  # No breaker has it, so an outcome that carries it is ignored.


class TurnCells(NamedTuple):
    """The cells that a turn has to pass, always in this order."""

    session: Cell
    user: Cell
    tenant: Cell
    provider: Cell


@dataclass(frozen=True, slots=True)
class MaxCost:
    """The most that a turn can cost: this much is reserved for it."""

    tokens: int
    microusd: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a turn took when it was admitted. It is stored in the turn's row, so that it can be given back by
    any worker, and by another version of this code.

    Its keys in the JSON are the names of the fields. A field that the JSON does not have gets its default,
    which gives nothing back and tells no breaker anything: then the lease frees what was reserved.
    """

    at: float = 0.0  # the start of the slot in which everything was reserved
    tokens: int = 0
    user_microusd: int = 0
    tenant_microusd: int = 0
    session_generation: int = NO_GENERATION
    user_generation: int = NO_GENERATION
    provider_generation: int = NO_GENERATION

    @property
    def microusd(self) -> int:
        """What the turn may spend."""
        return min(self.user_microusd, self.tenant_microusd)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, state: dict[str, Any] | list[Any]) -> Reservation:
        """Older rows hold a list: the values of the first seven fields, in their order."""
        keyed = state if isinstance(state, dict) else dict(zip(cls.__slots__, state, strict=False))
        return cls(**{name: keyed[name] for name in cls.__slots__ if name in keyed})


def admit(cells: TurnCells, max_cost: MaxCost, now: float) -> tuple[TurnCells, Reservation]:
    """The cells with one more turn running. Raises the first `GuardrailRefused` there is, and then
    nothing was taken anywhere.

    What affects everybody is asked first, then what lasts longest: of several reasons, people are told
    the one that explains most.
    """
    session, user, tenant, provider = cells
    scope = "provider"
    try:
        provider = replace(provider, breaker=provider.breaker.admit(now), outage=provider.outage.began(now))
        scope = "session"
        session, tokens = _reserved(session, max_cost.tokens, now)
        scope = "user"
        user, user_money = _reserved(user, max_cost.microusd, now)
        scope = "tenant"
        tenant, tenant_money = _reserved(tenant, max_cost.microusd, now)
        tenant = replace(tenant, bucket=tenant.bucket.take(now), bulkhead=tenant.bulkhead.enter(now))
        scope = "user"
        user = replace(user, bucket=user.bucket.take(now), bulkhead=user.bulkhead.enter(now))
        scope = "session"
        session = replace(session, bucket=session.bucket.take(now))
    except GuardrailRefused as refusal:
        if scope == "provider":  # It was opened by that many failing users, not by failures in a row.
            refusal.limit = provider.outage.policy.users
        stamp_refusal(refusal, scope)
        raise
    return TurnCells(session, user, tenant, provider), Reservation(
        at=tokens.start,
        tokens=tokens.amount,
        user_microusd=user_money.amount,
        tenant_microusd=tenant_money.amount,
        session_generation=session.breaker.generation,
        user_generation=user.breaker.generation,
        provider_generation=provider.breaker.generation,
    )


def settle(
    cells: TurnCells, reservation: Reservation, user_id: str, result: TurnResult, now: float
) -> TurnCells:
    """The cells after the turn: what was reserved is given back, real usage is counted, breakers are told."""
    session, user, tenant, provider = cells
    at, cost = reservation.at, result.charged_microusd
    provider = _provider_settled(provider, reservation, user_id, result, now)
    # If the model is down for everybody, that is not held against this chat or this person.
    is_down = result.verdict == "failed" and provider.breaker.opened is not None
    verdict: Verdict = "abandoned" if is_down else result.verdict
    return TurnCells(
        replace(
            session,
            breaker=_breaker_after(session.breaker, reservation.session_generation, verdict, now),
            budget=session.budget.settle(Hold(at, reservation.tokens), result.usage.total_tokens, now),
            tools=session.tools_after(result.tool_calls),
        ),
        replace(
            user,
            breaker=_breaker_after(user.breaker, reservation.user_generation, verdict, now),
            budget=user.budget.settle(Hold(at, reservation.user_microusd), cost, now),
            bulkhead=user.bulkhead.leave(at, now),
        ),
        replace(
            tenant,
            budget=tenant.budget.settle(Hold(at, reservation.tenant_microusd), cost, now),
            bulkhead=tenant.bulkhead.leave(at, now),
        ),
        provider,
    )


def give_back(cells: TurnCells, reservation: Reservation, now: float) -> TurnCells:
    """The cells after a turn whose worker died: nothing is known of what it spent."""
    return settle(cells, reservation, "", TurnResult("interrupted"), now)


def charge(cells: TurnCells, result: TurnResult, now: float) -> TurnCells:
    """Only the usage: for a turn that went on spending after its reservation was given back."""
    session, user, tenant, provider = cells
    cost = result.charged_microusd
    return TurnCells(
        replace(
            session,
            budget=session.budget.charge(result.usage.total_tokens, now),
            tools=session.tools_after(result.tool_calls),
        ),
        replace(user, budget=user.budget.charge(cost, now)),
        replace(tenant, budget=tenant.budget.charge(cost, now)),
        provider,
    )


def _reserved(cell: Cell, amount: int, now: float) -> tuple[Cell, Hold]:
    """The cell after its breaker was asked and the amount, or what is left of it, was reserved."""
    breaker = cell.breaker.admit(now)
    hold = cell.budget.fits(amount, now)
    return replace(cell, breaker=breaker, budget=cell.budget.reserve(hold, now)), hold


def _breaker_after(breaker: Breaker, generation: int, verdict: Verdict, now: float) -> Breaker:
    match verdict:
        case "succeeded":
            return breaker.succeeded(generation, now)
        case "failed":
            return breaker.failed(generation, now)
    return breaker.abandoned(generation, now)


def _provider_settled(
    cell: Cell, reservation: Reservation, user_id: str, result: TurnResult, now: float
) -> Cell:
    """Its breaker is told about probes. Whether it opens depends on how many users fail, and how often."""
    breaker, outage = cell.breaker, cell.outage.ended(reservation.at, now)
    # A turn that was admitted before the breaker opened or closed brings old news.
    if reservation.provider_generation == breaker.generation:
        breaker, outage = _provider_after(breaker, outage, user_id, result, now)
    return replace(cell, breaker=breaker, outage=outage)


def _provider_after(
    breaker: Breaker, outage: Outage, user_id: str, result: TurnResult, now: float
) -> tuple[Breaker, Outage]:
    generation, is_open = breaker.generation, breaker.opened is not None
    if result.verdict == "succeeded":
        return breaker.succeeded(generation, now), outage.cleared() if is_open else outage.succeeded(now)
    if result.verdict != "failed" or result.blame != "provider":
        return breaker.abandoned(generation, now), outage
    if is_open:
        return breaker.failed(generation, now), outage
    outage = outage.failed(user_id, now)
    if outage.is_down(now) and not breaker.forced:
        # Its failures are the number of failing users: zero would mean that an operator paused it.
        breaker = replace(breaker, failures=outage.users_failing(now)).tripped(now)
    return breaker, outage
