"""What running turns have reserved. It is given back when they end, and expires if they never do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.guardrails.times import recent, slot_start

SLOTS = 16


@dataclass(frozen=True, slots=True)
class Hold:
    """One reserved amount, and the start of the slot in which it was reserved."""

    start: float
    amount: int


@dataclass(frozen=True, slots=True)
class Holds:
    """Reserved amounts, summed up by the slot they were reserved in, so that thousands take little space.

    A slot is forgotten ``lease`` seconds after its end: what was not given back by then belonged to a
    worker that died. The caller has to make sure that nothing is given back twice. What belongs to a
    slot that was forgotten is not given back.
    """

    lease: float
    slots: tuple[tuple[float, int, int], ...] = ()  # start, how many holds, how much together

    def hold(self, amount: int, now: float) -> Hold:
        """The hold that would be taken now."""
        return Hold(slot_start(now, self.lease / SLOTS), amount)

    def take(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, 1, hold.amount, now)

    def give_back(self, hold: Hold, now: float) -> Holds:
        return self._with(hold.start, -1, -hold.amount, now)

    def count(self, now: float) -> int:
        return sum(slot[1] for slot in self._live(now))

    def amount(self, now: float) -> int:
        return sum(slot[2] for slot in self._live(now))

    def to_json(self) -> tuple[tuple[float, int, int], ...]:
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
