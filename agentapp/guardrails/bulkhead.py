"""The bulkhead: how many turns may run at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.errors import Busy
from agentapp.guardrails.holds import Hold, Holds

RETRY_AFTER_SECONDS = 2.0  # Nobody knows when a running turn ends; most end soon.


@dataclass(frozen=True, slots=True)
class Bulkhead:
    """At most ``limit`` turns at once. With None there is no limit; turns are counted all the same."""

    limit: int | None
    holds: Holds

    def enter(self, now: float) -> Bulkhead:
        """The bulkhead with one more turn in it. Raises `Busy` if it is full."""
        if self.limit is not None and (used := self.holds.count(now)) >= self.limit:
            raise Busy(limit=self.limit, used=used, retry_after=RETRY_AFTER_SECONDS)
        return Bulkhead(self.limit, self.holds.take(self.holds.hold(0, now), now))

    def leave(self, since: float, now: float) -> Bulkhead:
        return Bulkhead(self.limit, self.holds.give_back(Hold(since, 0), now))

    def to_json(self) -> tuple[tuple[float, int, int], ...]:
        return self.holds.to_json()

    @classmethod
    def from_json(cls, limit: int | None, lease: float, state: list[Any]) -> Bulkhead:
        return cls(limit, Holds.from_json(lease, state))
