"""One decision over session, user, tenant and provider: admit a turn, settle it, give back what it took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agentapp.errors import BreakerOpen, GuardrailRefused
from agentapp.events import TurnResult, Verdict
from agentapp.guardrails.breaker import Breaker
from agentapp.guardrails.cell import Cell
from agentapp.guardrails.holds import Hold
from agentapp.guardrails.outage import Person
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
    tenant_generation: int = NO_GENERATION
    # What its first model call is expected to cost. It is charged if the worker dies and has not stored more.
    first_call_tokens: int = 0
    first_call_microusd: int = 0
    first_call_agent: str = ""
    first_call_model: str = ""
    # When the turn began. What it costs counts for that day and month, whoever charges or corrects it, and
    # whenever. (``at`` may be some seconds earlier, before midnight.) Older rows have none: what they cost
    # counts for the day on which it is charged.
    begun: float | None = None

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


def admit(cells: TurnCells, who: Person, max_cost: MaxCost, now: float) -> tuple[TurnCells, Reservation]:
    """The cells with one more turn running. Raises the first `GuardrailRefused` there is, and then
    nothing was taken anywhere.

    What affects everybody is asked first, then what lasts longest: of several reasons, people are told
    the one that explains most.
    """
    session, user, tenant, provider = cells
    works = _is_seen_to_work_since_it_opened(tenant, provider, now)
    scope = "provider"
    try:
        if (asked := _asked_about_model(provider, who, now)) is not provider.breaker:
            provider = replace(provider, breaker=asked)
        if not tenant.breaker.forced:
            tenant = replace(tenant, breaker=_asked_about_model(tenant, who, now, works=works))
        scope = "session"
        session, tokens = _reserved(session, max_cost.tokens, now)
        scope = "user"
        user, user_money = _reserved(user, max_cost.microusd, now)
        scope = "tenant"
        if tenant.breaker.forced:
            tenant = replace(tenant, breaker=tenant.breaker.admit(now))
        tenant_money = tenant.budget.fits(max_cost.microusd, now)
        tenant = replace(
            tenant,
            budget=tenant.budget.reserve(tenant_money, now),
            bucket=tenant.bucket.take(now),
            bulkhead=tenant.bulkhead.enter(now),
        )
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
        tenant_generation=tenant.breaker.generation,
        begun=now,
    )


def settle(
    cells: TurnCells,
    reservation: Reservation,
    who: Person,
    result: TurnResult,
    now: float,
    running: int = 0,
) -> TurnCells:
    """The cells after the turn: what was reserved is given back, real usage is counted, breakers are told.

    ``running`` is how many other turns run, of all tenants; it matters only after a failure of the model.
    """
    session, user, tenant, provider = cells
    at, begun, cost = reservation.at, reservation.begun, result.charged_microusd
    provider = _told_about_model(provider, reservation.provider_generation, who, result, now, running)
    tenant = replace(
        tenant,
        budget=tenant.budget.settle(Hold(at, reservation.tenant_microusd), cost, now, begun),
        bulkhead=tenant.bulkhead.leave(at, now),
    )
    running_here = tenant.bulkhead.holds.count(now)
    tenant = _told_about_model(tenant, reservation.tenant_generation, who, result, now, running_here)
    # If the model is down for others too, that is not held against this chat or this person.
    is_down = result.verdict == "failed" and (
        provider.breaker.opened is not None or tenant.breaker.opened is not None
    )
    verdict: Verdict = "abandoned" if is_down else result.verdict
    return TurnCells(
        replace(
            session,
            breaker=_breaker_after(session.breaker, reservation.session_generation, verdict, now),
            budget=session.budget.settle(Hold(at, reservation.tokens), result.usage.total_tokens, now, begun),
            tools=session.tools_after(result.tool_calls),
        ),
        replace(
            user,
            breaker=_breaker_after(user.breaker, reservation.user_generation, verdict, now),
            budget=user.budget.settle(Hold(at, reservation.user_microusd), cost, now, begun),
            bulkhead=user.bulkhead.leave(at, now),
        ),
        tenant,
        provider,
    )


def is_calm(provider: Cell) -> bool:
    """Whether it lets every turn through and does not change by it. Then nobody need lock its row, which is
    that of all turns of all users.
    """
    return provider.breaker.opened is None and not provider.breaker.forced


def concerns_everybody(provider: Cell, result: TurnResult) -> bool:
    """Whether the provider's breaker has to be told at once how a turn ended. Otherwise it is enough that the
    turn is counted some time.
    """
    return not is_calm(provider) or _is_model_failure(result)


def counted(provider: Cell, succeeded: int, now: float) -> Cell:
    """After so many turns that succeeded. Of turns from before it opened, an open breaker is not told."""
    if not succeeded or not is_calm(provider):
        return provider
    return replace(provider, outage=provider.outage.succeeded(now, succeeded))


def charge(cells: TurnCells, result: TurnResult, now: float, begun: float | None = None) -> TurnCells:
    """Only the usage: for a turn that went on spending after its reservation was given back, or that was
    charged too much then. ``begun`` is that of its reservation.
    """
    session, user, tenant, provider = cells
    cost = result.charged_microusd
    return TurnCells(
        replace(
            session,
            budget=session.budget.charge(result.usage.total_tokens, now, begun),
            tools=session.tools_after(result.tool_calls),
        ),
        replace(user, budget=user.budget.charge(cost, now, begun)),
        replace(tenant, budget=tenant.budget.charge(cost, now, begun)),
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


def _is_seen_to_work_since_it_opened(tenant: Cell, provider: Cell, now: float) -> bool:
    """Whether the model has answered others since the tenant's breaker opened. While it is down for everybody
    that says nothing.
    """
    opened = tenant.breaker.opened
    if opened is None or provider.breaker.opened is not None:
        return False
    return provider.outage.answered_since(opened, now)


def _asked_about_model(cell: Cell, who: Person, now: float, *, works: bool = False) -> Breaker:
    """The breaker of the provider or of the tenant after it let the turn through. If it is open: a tenant of
    which nobody failed may try at once, one turn at a time; of a tenant that failed, the probe after the
    cool-down goes to somebody who did not. The cool-down is over if the model ``works`` for others.
    """
    breaker, outage = cell.breaker, cell.outage
    if breaker.opened is None or breaker.forced:
        return breaker.admit(now)
    if not outage.tenant_failed(who.tenant_id):
        return breaker.admit_early(now)
    cooldown, wait = (0.0, 0.0) if works else (breaker.cooldown, breaker.wait(now) or 0.0)
    if (left := outage.seconds_without_probe(who, cooldown, now)) > 0:
        raise BreakerOpen(limit=outage.policy.users, used=breaker.failures, retry_after=max(left, wait))
    return breaker.admit_early(now) if works else breaker.admit(now)


def _told_about_model(
    cell: Cell, generation: int, who: Person, result: TurnResult, now: float, running: int
) -> Cell:
    """The breaker itself is told about probes. Whether it opens depends on how many users fail, and how
    often.
    """
    if generation == cell.breaker.generation:
        if _is_open(cell):
            return _told_by_probe(cell, who, result, now)
        return _told(cell, who, result, now, running)
    # Admitted before the breaker opened or closed, so this is old news. But who fails while it is open is one
    # of those who failed.
    if _is_open(cell) and _is_model_failure(result):
        return replace(cell, outage=cell.outage.failed(who, now, is_open=True))
    return cell


def _told_by_probe(cell: Cell, who: Person, result: TurnResult, now: float) -> Cell:
    """After the end of a turn that an open breaker let through."""
    breaker, outage = cell.breaker, cell.outage
    if _is_model_failure(result):
        breaker = breaker.failed(breaker.generation, now)
        return replace(cell, breaker=breaker, outage=outage.failed(who, now, is_open=True))
    # A word of the model is enough, however the turn ended then. Otherwise somebody could keep the breaker
    # open by stopping one probe after the other.
    if result.verdict == "succeeded" or result.usage.output_tokens > 0:
        breaker = breaker.succeeded(breaker.generation, now)
        return replace(cell, breaker=breaker, outage=outage.cleared().succeeded(now))
    # Who ended it before the first word has used up the probe. A worker that died is nobody's doing.
    if result.status != "interrupted":
        outage = outage.failed(who, now, is_open=True)
    return replace(cell, breaker=breaker.abandoned(breaker.generation, now), outage=outage)


def _told(cell: Cell, who: Person, result: TurnResult, now: float, running: int) -> Cell:
    """After the end of a turn that a closed breaker let through."""
    breaker, outage = cell.breaker, cell.outage
    if result.verdict == "succeeded":
        breaker = breaker.succeeded(breaker.generation, now)
        return replace(cell, breaker=breaker, outage=outage.succeeded(now))
    if not _is_model_failure(result):
        return cell
    outage = outage.failed(who, now)
    if outage.is_down(now, running) and not breaker.forced:
        # Its failures are the number of failing users: zero would mean that an operator paused it.
        breaker = replace(breaker, failures=outage.users_failing(now)).tripped(now)
    return replace(cell, breaker=breaker, outage=outage)


def _is_open(cell: Cell) -> bool:
    return cell.breaker.opened is not None


def _is_model_failure(result: TurnResult) -> bool:
    return result.verdict == "failed" and result.blame == "provider"
