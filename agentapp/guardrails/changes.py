"""What the end of a turn has changed for others: breakers that opened or closed, and whether a failure stayed
with its own chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentapp.guardrails.admission import TurnCells
from agentapp.guardrails.budget_alerts import NearlyUsed
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.registry import Rows
from agentapp.isolation import Scope


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A breaker that was closed and is open now, or the other way. If it opens anew after a probe has failed,
    that is no change: it was open all the while.
    """

    key: Key
    opened: bool
    failures: int
    cooldown: float

    @property
    def subject(self) -> str:
        return f"{self.key.scope}:{self.key.id}"


@dataclass(frozen=True, slots=True)
class Settled:
    """``contained`` tells of a turn that failed whether that can have no effect on any other chat."""

    changes: tuple[BreakerChange, ...] = ()
    contained: bool = True
    nearly_used: tuple[NearlyUsed, ...] = ()


class BreakerRows(Rows[Key], Protocol):
    def record_breaker(self, change: BreakerChange, scope: Scope) -> None:
        """Write it into the audit log, as part of the transaction. ``scope`` is that of the turn."""


def settled(keys: Sequence[Key], before: TurnCells, after: TurnCells) -> Settled:
    changes = tuple(
        BreakerChange(key, now.breaker.opened is not None, now.breaker.failures, now.breaker.cooldown)
        for key, was, now in zip(keys, before, after, strict=True)
        if now.breaker is not was.breaker and (was.breaker.opened is None) != (now.breaker.opened is None)
    )
    return Settled(changes, not any(map(_is_kept_open, before[1:], after[1:])))


def _is_kept_open(before: Cell, after: Cell) -> bool:
    """Whether a breaker that other chats have to pass is open, and this turn has had a part in that."""
    if after.breaker.opened is None:
        return False
    return after.breaker is not before.breaker or after.outage is not before.outage
