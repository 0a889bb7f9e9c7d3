"""The budget: reserve before spending, then settle with what was really spent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from agentapp.errors import BudgetExhausted
from agentapp.guardrails.holds import Hold, Holds

Period = Literal["ever", "day", "month"]
# The periods that were charged last. A clock put back over midnight, even twice, finds its day again.
PERIODS_KEPT = 3
FIRST_DAY = date(1970, 1, 1).toordinal()  # the day on which the clock says 0
# Running turns will soon give back what they do not need.
RESERVED_RETRY_AFTER_SECONDS = 5.0
# Such a budget never resets by itself; by tomorrow an operator may have raised it.
NO_RESET_RETRY_AFTER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """An amount (tokens, or millionths of a dollar) for each UTC day or month, or once for all time.

    A ``limit`` of None never refuses; what is spent is counted all the same.
    """

    limit: int | None
    period: Period = "ever"


@dataclass(frozen=True, slots=True)
class Budget:
    allowance: Allowance
    holds: Holds
    spent: tuple[tuple[str, int], ...] = ()

    def fits(self, amount: int, now: float) -> Hold:
        """What may be reserved now: the amount or, if less is left, all that is left.

        Raises `BudgetExhausted` if nothing is left. So the last turn of a day may be cut short, but
        the whole budget can be used.
        """
        left = self.left(now)
        if left is not None and left <= 0:
            raise self._exhausted(now)
        return self.holds.hold(amount if left is None else min(amount, left), now)

    def reserve(self, hold: Hold, now: float) -> Budget:
        return Budget(self.allowance, self.holds.take(hold, now), self.spent)

    def settle(self, hold: Hold, amount: int, now: float, at: float | None = None) -> Budget:
        """Give the reservation back and charge what was really spent, whether less or more."""
        return self.give_back(hold, now).charge(amount, now, at)

    def give_back(self, hold: Hold, now: float) -> Budget:
        return Budget(self.allowance, self.holds.give_back(hold, now), self.spent)

    def charge(self, amount: int, now: float, at: float | None = None) -> Budget:
        """An amount below zero takes back what was charged too much. ``at`` is a moment in the period that it
        counts for, if that is not now: what is taken back must be where it was charged.
        """
        if not amount:
            return self
        current = _period(self.allowance.period, now)
        period = current if at is None else _period(self.allowance.period, at)
        spent = dict(self.spent)
        amount = max(0, amount + spent.get(period, 0))
        if period == current:
            spent.pop(period, None)  # it becomes the last one, which is the last to be forgotten
        elif period not in spent:
            spent = {period: 0, **spent}  # the first to be forgotten: it must not push the current one out
        spent[period] = amount
        return Budget(self.allowance, self.holds, tuple(spent.items())[-PERIODS_KEPT:])

    def used(self, now: float) -> int:
        return dict(self.spent).get(_period(self.allowance.period, now), 0) if self.spent else 0

    def left(self, now: float) -> int | None:
        """What is neither spent nor reserved; None if there is no limit."""
        if self.allowance.limit is None:
            return None
        return self.allowance.limit - self.used(now) - self.holds.amount(now)

    def period(self, now: float) -> str:
        """The day or the month that is now, as ``2026-05-31`` or ``2026-05``."""
        return _period(self.allowance.period, now)

    def passes(self, share: float, before: Budget, now: float) -> bool:
        """Whether so much of the limit is used now, and was not ``before``."""
        limit = self.allowance.limit
        return limit is not None and before.used(now) < share * limit <= self.used(now)

    def resets_in(self, now: float) -> float | None:
        """Seconds until the next period; None if there is none."""
        return seconds_left(self.allowance.period, now)

    def _exhausted(self, now: float) -> BudgetExhausted:
        limit, used = self.allowance.limit or 0, self.used(now)
        wait = RESERVED_RETRY_AFTER_SECONDS
        if used >= limit:
            wait = self.resets_in(now) or NO_RESET_RETRY_AFTER_SECONDS
        return BudgetExhausted(limit=limit, used=used, retry_after=wait)

    def to_json(self) -> dict[str, Any]:
        if not self.spent and not self.holds.slots:
            return {}
        state: dict[str, Any] = {"spent": dict(self.spent), "holds": self.holds.to_json()}
        return {name: value for name, value in state.items() if value}

    @classmethod
    def from_json(cls, allowance: Allowance, lease: float, state: dict[str, Any]) -> Budget:
        holds = Holds.from_json(lease, state.get("holds", []))
        return cls(allowance, holds, tuple(state.get("spent", {}).items()))


def seconds_left(period: Period, now: float) -> float | None:
    at = datetime.fromtimestamp(now, UTC)
    today = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            return (today + timedelta(days=1) - at).total_seconds()
        case "month":
            return ((today.replace(day=1) + timedelta(days=32)).replace(day=1) - at).total_seconds()
    return None


def _period(period: Period, now: float) -> str:
    if period == "ever":
        return period
    today = date.fromordinal(FIRST_DAY + int(now // 86_400)).isoformat()
    return today if period == "day" else today[:7]
