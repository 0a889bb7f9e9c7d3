"""Time as the guardrails see it: seconds of the wall clock, which may jump."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

Slot = TypeVar("Slot", bound=tuple[Any, ...])

# Clocks of several machines differ a little, and one machine's is put right now and then by that much.
SLACK = 2.0


def elapsed(since: float, now: float) -> float:
    """Seconds since then. A moment that lies ahead cannot have been: the clock was moved, and it counts
    as long ago. So nothing that is waited for can be further away than the wait itself.
    """
    if since <= now:
        return now - since
    return 0.0 if since <= now + SLACK else inf


def recent(slots: Sequence[Slot], lasts: float, now: float) -> list[Slot]:
    """The slots that began less than so many seconds ago, by the same rule. They are in order of time, so
    whatever has to go is at one of the two ends.
    """
    first, end = 0, len(slots)
    while first < end and slots[first][0] <= now - lasts:
        first += 1
    while first < end and slots[end - 1][0] > now + SLACK:
        end -= 1
    return list(slots[first:end])


def slot_start(now: float, width: float) -> float:
    """When the slot began that this moment is in. Mostly that is a whole second, and then it is kept as
    an int, which takes less room and less time to write down.
    """
    start = now - now % width
    return int(start) if start.is_integer() else start
