"""What running turns have reserved: given back when they end, and by time alone if they never do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.guardrails.moments import elapsed

SLOTS = 16


@dataclass(frozen=True, slots=True)
class Hold:
    """One reservation: the slot it was made in, and how much it is."""

    start: float
    amount: int


@dataclass(frozen=True, slots=True)
class Holds:
    """Reservations, summed up by the time they were made at, so that thousands take no more room than one.

    A slot is forgotten ``lease`` seconds after its end: whatever in it was not given back by then
    belonged to somebody who died. Giving back twice is the caller's mistake to prevent; what is
    in no slot any more is not given back.
    """

    lease: float
    slots: tuple[tuple[float, int, int], ...] = ()  # start, how many, how much

    def hold(self, amount: int, now: float) -> Hold:
        """What would be taken now."""
        return Hold(now - now % (self.lease / SLOTS), amount)

    def take(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, 1, hold.amount, now)

    def give_back(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, -1, -hold.amount, now)

    def count(self, now: float) -> int:
        return sum(slot[1] for slot in self._live(now))

    def amount(self, now: float) -> int:
        return sum(slot[2] for slot in self._live(now))

    def as_json(self) -> list[list[float]]:
        return [list(slot) for slot in self.slots]

    @classmethod
    def from_json(cls, lease: float, state: list[Any]) -> Holds:
        return cls(lease, tuple((start, count, amount) for start, count, amount in state))

    def _live(self, now: float) -> tuple[tuple[float, int, int], ...]:
        lasts = self.lease * (1 + 1 / SLOTS)
        return tuple(slot for slot in self.slots if elapsed(slot[0], now) < lasts)

    def _with(self, start: float, count: int, amount: int, now: float) -> Holds:
        live = {s: (n, a) for s, n, a in self._live(now)}
        if count < 0 and start not in live:
            return Holds(self.lease, tuple((s, *rest) for s, rest in sorted(live.items())))
        n, a = live.get(start, (0, 0))
        live[start] = (max(0, n + count), max(0, a + amount))
        return Holds(self.lease, tuple((s, *rest) for s, rest in sorted(live.items()) if rest[0]))
