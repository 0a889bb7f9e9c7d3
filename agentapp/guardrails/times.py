"""Time as the guardrails see it: seconds of the wall clock, which may jump."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

Slot = TypeVar("Slot", bound=tuple[Any, ...])

# The clocks of several machines differ a little, and a clock is corrected now and then by about as much.
CLOCK_SKEW_SECONDS = 2.0


def elapsed(since: float, now: float) -> float:
    """Seconds since then. A time in the future means that the clock was moved, and counts as long ago. So
    no wait can last longer than it was meant to.
    """
    if since <= now:
        return now - since
    return 0.0 if since <= now + CLOCK_SKEW_SECONDS else inf


def recent(slots: Sequence[Slot], lasts: float, now: float) -> list[Slot]:
    """The slots that began less than ``lasts`` seconds ago, by the same rule. Slots are in order of time, so
    those that have to go are at one of the two ends.
    """
    first, end = 0, len(slots)
    while first < end and slots[first][0] <= now - lasts:
        first += 1
    while first < end and slots[end - 1][0] > now + CLOCK_SKEW_SECONDS:
        end -= 1
    return list(slots[first:end])


def slot_start(now: float, width: float) -> float:
    """When the slot began that this time is in. Mostly that is a whole second. It is then an int, which
    takes less space and less time to write as JSON.
    """
    start = now - now % width
    return int(start) if start.is_integer() else start
