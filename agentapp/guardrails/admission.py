"""One decision over session, user, tenant and provider: let a turn in, settle it, give back what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from agentapp.errors import Blame, GuardrailRefused
from agentapp.guardrails.cell import Cell
from agentapp.guardrails.holds import Hold
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
        tenant_money = tenant.budget.fits(wish.microusd, now)
        tenant_bucket, tenant_room = tenant.bucket.take(now), tenant.room.enter(now)
        scope = "user"
        user_bucket, user_room = user.bucket.take(now), user.room.enter(now)
        scope = "session"
        session_bucket = session.bucket.take(now)
    except GuardrailRefused as refusal:
        refusal.scope = scope
        refusal.args = (explained(refusal),)
        raise
    after = Four(
        replace(
            session,
            breaker=session_breaker,
            bucket=session_bucket,
            budget=session.budget.reserve(tokens, now),
        ),
        replace(
            user,
            breaker=user_breaker,
            bucket=user_bucket,
            room=user_room,
            budget=user.budget.reserve(user_money, now),
        ),
        replace(
            tenant, bucket=tenant_bucket, room=tenant_room, budget=tenant.budget.reserve(tenant_money, now)
        ),
        replace(provider, breaker=provider_breaker, outage=provider.outage.began(now)),
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
    cells = charge(_given_back(cells, ticket, now), end, now)
    provider = _provider_told(cells.provider, ticket, user_id, end, now)
    if end.result == "failed" and provider.breaker.opened is not None:
        # The model is down for everybody: that is not held against this chat or this person.
        end = replace(end, result="abandoned")
    return cells._replace(
        session=_told(cells.session, ticket.session_token, end, now),
        user=_told(cells.user, ticket.user_token, end, now),
        provider=provider,
    )


def withdraw(cells: Four, ticket: Pass, now: float) -> Four:
    """The cells after a turn of which nobody heard again."""
    lost = Outcome("abandoned")
    return settle(cells, ticket, "", lost, now)


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


def _given_back(cells: Four, ticket: Pass, now: float) -> Four:
    session, user, tenant, provider = cells
    at = ticket.at
    return Four(
        replace(session, budget=session.budget.give_back(Hold(at, ticket.tokens), now)),
        replace(
            user,
            budget=user.budget.give_back(Hold(at, ticket.user_microusd), now),
            room=user.room.leave(at, now),
        ),
        replace(
            tenant,
            budget=tenant.budget.give_back(Hold(at, ticket.tenant_microusd), now),
            room=tenant.room.leave(at, now),
        ),
        replace(provider, outage=provider.outage.ended(at, now)),
    )


def _told(cell: Cell, token: int, end: Outcome, now: float) -> Cell:
    tell: Callable[[int, float], Any] = getattr(cell.breaker, end.result)
    return replace(cell, breaker=tell(token, now))


def _provider_told(cell: Cell, ticket: Pass, user_id: str, end: Outcome, now: float) -> Cell:
    """Its breaker hears of probes; whether it opens is decided by how many users fail, and how much."""
    breaker, outage, token = cell.breaker, cell.outage, ticket.provider_token
    if token != breaker.token:
        return cell  # let in before the breaker opened or closed: what it tells is no longer true
    if end.result == "succeeded":
        recovered = breaker.opened is not None
        seen = outage.cleared() if recovered else outage.succeeded(now)
        return replace(cell, breaker=breaker.succeeded(token, now), outage=seen)
    if end.result != "failed" or end.blame != "provider":
        return replace(cell, breaker=breaker.abandoned(token, now))
    if breaker.opened is not None:
        return replace(cell, breaker=breaker.failed(token, now))
    outage = outage.failed(user_id, now)
    return replace(cell, breaker=breaker.tripped(now) if outage.is_down(now) else breaker, outage=outage)
