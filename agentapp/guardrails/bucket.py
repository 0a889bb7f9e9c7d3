"""The rate limit: a frozen value that counts what went through lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.errors import RateLimited
from agentapp.guardrails.times import recent, slot_start

# A hit is remembered only by the slot it fell into, so a bucket stays small however high its limit is.
SLOTS = 60


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` within any stretch of ``seconds``."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """Never lets more through than its rate allows, in any stretch of that length.

    For that, a slot counts until all of it is outside the stretch. So a hit counts for at most one slot,
    a sixtieth of the time, longer than necessary.
    """

    rate: Rate | None
    slots: tuple[tuple[float, int], ...] = ()

    def take(self, now: float) -> Bucket:
        """The bucket with one more in it. Raises `RateLimited` if there is no room."""
        if self.rate is None:
            return self
        live = self._live(now)
        used = sum(count for _, count in live)
        if used >= self.rate.count:
            wait = self._frees(live, used, now)
            raise RateLimited(limit=self.rate.count, used=used, retry_after=wait, seconds=self.rate.seconds)
        width = self.rate.seconds / SLOTS
        start = slot_start(now, width)
        if live and live[-1][0] == start:
            live[-1] = (start, live[-1][1] + 1)
        else:
            counts = dict(
                live
            )  # The slot may exist and not be the last, because the clocks of workers differ.
            counts[start] = counts.get(start, 0) + 1
            live = sorted(counts.items())
        return Bucket(self.rate, tuple(live))

    def used(self, now: float) -> int:
        return sum(count for _, count in self._live(now))

    def to_json(self) -> tuple[tuple[float, int], ...]:
        return self.slots

    @classmethod
    def from_json(cls, rate: Rate | None, state: list[Any]) -> Bucket:
        return cls(rate, tuple((start, count) for start, count in state))

    def _live(self, now: float) -> list[tuple[float, int]]:
        return recent(self.slots, self.rate.seconds * (1 + 1 / SLOTS), now) if self.rate else []

    def _frees(self, live: list[tuple[float, int]], used: int, now: float) -> float:
        """Seconds until enough slots have expired for one more hit."""
        if self.rate is None:
            return 0.0
        for start, count in live:
            used -= count
            if used < self.rate.count:
                return max(0.0, start + self.rate.seconds * (1 + 1 / SLOTS) - now)
        return self.rate.seconds
