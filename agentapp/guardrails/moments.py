"""Time as the guardrails see it: seconds of the wall clock, which may jump."""

from __future__ import annotations

from math import inf

# Clocks of several machines differ a little, and one machine's is put right now and then by that much.
SLACK = 2.0


def elapsed(since: float, now: float) -> float:
    """Seconds since then. A moment that lies ahead cannot have been: the clock was moved, and it counts
    as long ago. So nothing that is waited for can be further away than the wait itself.
    """
    if since > now + SLACK:
        return inf
    return max(0.0, now - since)
