"""What running turns have reserved: given back when they end, and by time alone if they never do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.guardrails.times import recent, slot_start

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
        return Hold(slot_start(now, self.lease / SLOTS), amount)

    def take(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, 1, hold.amount, now)

    def give_back(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, -1, -hold.amount, now)

    def count(self, now: float) -> int:
        return sum(slot[1] for slot in self._live(now))

    def amount(self, now: float) -> int:
        return sum(slot[2] for slot in self._live(now))

    def as_json(self) -> tuple[tuple[float, int, int], ...]:
        return self.slots

    @classmethod
    def from_json(cls, lease: float, state: list[Any]) -> Holds:
        return cls(lease, tuple((start, count, amount) for start, count, amount in state))

    def _live(self, now: float) -> list[tuple[float, int, int]]:
        return recent(self.slots, self.lease * (1 + 1 / SLOTS), now)

    def _with(self, start: float, count: int, amount: int, now: float) -> Holds:
        kept = []
        for slot in self._live(now):
            if slot[0] == start:
                count, amount = max(0, slot[1] + count), max(0, slot[2] + amount)
            else:
                kept.append(slot)
        if count > 0:
            kept.append((start, count, amount))
            kept.sort()
        return Holds(self.lease, tuple(kept))
