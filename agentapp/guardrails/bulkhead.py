"""The bulkhead: how many turns may run at once."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.errors import Busy
from agentapp.guardrails.holds import Hold, Holds

PATIENCE = 2.0  # nobody knows when a running turn ends; most do soon


@dataclass(frozen=True, slots=True)
class Room:
    """Room for ``limit`` turns; None is for any number, which are counted all the same."""

    limit: int | None
    holds: Holds

    def enter(self, now: float) -> Room:
        if self.limit is not None and (used := self.holds.count(now)) >= self.limit:
            raise Busy(limit=self.limit, used=used, retry_after=PATIENCE)
        return Room(self.limit, self.holds.take(self.holds.hold(0, now), now))

    def leave(self, since: float, now: float) -> Room:
        return Room(self.limit, self.holds.give_back(Hold(since, 0), now))
