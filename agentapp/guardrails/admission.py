"""One decision over session, user, tenant and provider: let a turn in, settle it, give back what it took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from agentapp.errors import Blame, GuardrailRefused
from agentapp.guardrails.breaker import Breaker
from agentapp.guardrails.cell import Cell
from agentapp.guardrails.holds import Hold
from agentapp.guardrails.outage import Outage
from agentapp.guardrails.wording import explained

Result = Literal["succeeded", "failed", "abandoned"]


class Four(NamedTuple):
    """The cells that a turn has to pass, always in this order."""

    session: Cell
    user: Cell
    tenant: Cell
    provider: Cell


@dataclass(frozen=True, slots=True)
class Wish:
    """The most that a turn can cost: what is reserved for it."""

    tokens: int
    microusd: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What a turn took when it was let in. It is kept in the turn's row, so that whoever ends the turn
    can give it back.
    """

    at: float  # the slot in which every hold was made
    tokens: int
    user_microusd: int
    tenant_microusd: int
    session_token: int
    user_token: int
    provider_token: int

    @property
    def microusd(self) -> int:
        """What the turn may spend."""
        return min(self.user_microusd, self.tenant_microusd)

    def as_json(self) -> list[float]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, state: list[Any]) -> Pass:
        return cls(*state)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, as far as the guardrails care. ``blame`` says whose failure it was."""

    result: Result
    blame: Blame = "nobody"
    tokens: int = 0
    microusd: int = 0
    tools: tuple[tuple[str, int], ...] = ()


def admit(cells: Four, wish: Wish, now: float) -> tuple[Four, Pass]:
    """The cells with one more turn under way. Raises the first `GuardrailRefused` there is, and then
    nothing was taken anywhere.

    What everybody suffers from comes first, then what lasts longest: of several reasons, people
    are told the one that explains most.
    """
    session, user, tenant, provider = cells
    scope = "provider"
    try:
        provider_breaker = provider.breaker.admit(now)
        scope = "session"
        session_breaker = session.breaker.admit(now)
        tokens = session.budget.fits(wish.tokens, now)
        scope = "user"
        user_breaker = user.breaker.admit(now)
        user_money = user.budget.fits(wish.microusd, now)
        scope = "tenant"
        tenant_breaker = tenant.breaker.admit(now)
        tenant_money = tenant.budget.fits(wish.microusd, now)
        tenant_bucket, tenant_room = tenant.bucket.take(now), tenant.room.enter(now)
        scope = "user"
        user_bucket, user_room = user.bucket.take(now), user.room.enter(now)
        scope = "session"
        session_bucket = session.bucket.take(now)
    except GuardrailRefused as refusal:
        refusal.scope = scope
        if scope == "provider":  # what opened it is not failures in a row, but so many people's
            refusal.limit = provider.outage.policy.users
        refusal.args = (explained(refusal),)
        raise
    after = Four(
        Cell(
            session_breaker,
            session_bucket,
            session.budget.reserve(tokens, now),
            session.room,
            session.outage,
            session.tools,
        ),
        Cell(user_breaker, user_bucket, user.budget.reserve(user_money, now), user_room, user.outage),
        Cell(
            tenant_breaker,
            tenant_bucket,
            tenant.budget.reserve(tenant_money, now),
            tenant_room,
            tenant.outage,
        ),
        Cell(provider_breaker, provider.bucket, provider.budget, provider.room, provider.outage.began(now)),
    )
    return after, Pass(
        tokens.start,
        tokens.amount,
        user_money.amount,
        tenant_money.amount,
        session_breaker.token,
        user_breaker.token,
        provider_breaker.token,
    )


def settle(cells: Four, ticket: Pass, user_id: str, end: Outcome, now: float) -> Four:
    """The cells after the turn: reservations given back, real usage noted, breakers told."""
    session, user, tenant, provider = cells
    at = ticket.at
    provider = _provider_told(provider, ticket, user_id, end, now)
    # If the model is down for everybody, that is not held against this chat or this person.
    is_down = end.result == "failed" and provider.breaker.opened is not None
    result: Result = "abandoned" if is_down else end.result
    return Four(
        Cell(
            _told(session.breaker, ticket.session_token, result, now),
            session.bucket,
            session.budget.settle(Hold(at, ticket.tokens), end.tokens, now),
            session.room,
            session.outage,
            session.with_tools(end.tools),
        ),
        Cell(
            _told(user.breaker, ticket.user_token, result, now),
            user.bucket,
            user.budget.settle(Hold(at, ticket.user_microusd), end.microusd, now),
            user.room.leave(at, now),
            user.outage,
        ),
        Cell(
            tenant.breaker,
            tenant.bucket,
            tenant.budget.settle(Hold(at, ticket.tenant_microusd), end.microusd, now),
            tenant.room.leave(at, now),
            tenant.outage,
        ),
        provider,
    )


def withdraw(cells: Four, ticket: Pass, now: float) -> Four:
    """The cells after a turn of which nobody heard again."""
    return settle(cells, ticket, "", Outcome("abandoned"), now)


def charge(cells: Four, end: Outcome, now: float) -> Four:
    """Only the usage: for a turn that was given up while it was still spending."""
    session, user, tenant, provider = cells
    return Four(
        replace(
            session,
            budget=session.budget.charge(end.tokens, now),
            tools=session.with_tools(end.tools),
        ),
        replace(user, budget=user.budget.charge(end.microusd, now)),
        replace(tenant, budget=tenant.budget.charge(end.microusd, now)),
        provider,
    )


def _told(breaker: Breaker, token: int, result: Result, now: float) -> Breaker:
    match result:
        case "succeeded":
            return breaker.succeeded(token, now)
        case "failed":
            return breaker.failed(token, now)
    return breaker.abandoned(token, now)


def _provider_told(cell: Cell, ticket: Pass, user_id: str, end: Outcome, now: float) -> Cell:
    """Its breaker hears of probes; whether it opens is decided by how many users fail, and how much."""
    outage = cell.outage.ended(ticket.at, now)
    breaker, outage = _judged(cell.breaker, outage, ticket.provider_token, user_id, end, now)
    return Cell(breaker, cell.bucket, cell.budget, cell.room, outage)


def _judged(
    breaker: Breaker, outage: Outage, token: int, user_id: str, end: Outcome, now: float
) -> tuple[Breaker, Outage]:
    if token != breaker.token:
        return breaker, outage  # let in before the breaker opened or closed: its news is old
    if end.result == "succeeded":
        recovered = breaker.opened is not None
        return breaker.succeeded(token, now), outage.cleared() if recovered else outage.succeeded(now)
    if end.result != "failed" or end.blame != "provider":
        return breaker.abandoned(token, now), outage
    if breaker.opened is not None:
        return breaker.failed(token, now), outage
    outage = outage.failed(user_id, now)
    if outage.is_down(now) and not breaker.forced:
        # With how many people it failed: none would mean that an operator paused it.
        breaker = replace(breaker, failures=outage.users_failing(now)).tripped(now)
    return breaker, outage
