"""How many new turns may wait for their beginning, and when those who are refused should come back.

To begin a turn takes processors and the database, which all turns of a worker have in common. So few begin at
once, and the others wait in a queue, without a thread. The queue is as long as what begins within some
seconds, at the pace of the last few seconds: a worker that is slow, for whatever reason, lets fewer in.
"""

from __future__ import annotations

from math import ceil, exp

# How long a turn may wait for its beginning. Whoever would wait longer is refused at once.
MOST_WAIT_SECONDS = 8.0
# Whoever has waited for so long is not refused any more, though it takes longer than it seemed.
REFUSED_WITHIN_SECONDS = 1.0
LEAST_WAITING = 8  # though the pace is so slow that even these take longer
# What is known of the pace fades with time: after so many seconds of waiting, to about a third.
PACE_SECONDS = 3.0
# As if a worker that has begun nothing yet had begun so many, at this pace. The first ones take longer, and
# must not make it refuse the others.
BEGUN_AT_FIRST = 300.0
SECONDS_EACH_AT_FIRST = 0.01
# Those who were refused so lately may still come back at the same time.
REFUSED_SECONDS = 10.0
LEAST_RETRY_SECONDS = 2
MOST_RETRY_SECONDS = 30


class Shedding:
    """Decides for one worker. Whoever has one tells it what happens, with the time; it asks nobody."""

    def __init__(self) -> None:
        self._begun = BEGUN_AT_FIRST  # lately, while others waited
        self._seconds = BEGUN_AT_FIRST * SECONDS_EACH_AT_FIRST  # that it took
        self._refused = 0.0  # lately
        self._somebody_waits = False
        self._seen = self._seen_refusing = 0.0

    def most_waiting(self, now: float) -> int:
        """How many may wait now. It shrinks while somebody waits and nothing begins."""
        self._pass_time(now)
        return max(LEAST_WAITING, int(MOST_WAIT_SECONDS / self.seconds_each))

    @property
    def seconds_each(self) -> float:
        """From one beginning to the next, while there is somebody who waits."""
        return self._seconds / self._begun

    def note_begun(self, now: float) -> None:
        """A turn has begun. How fast they do is only seen while others wait."""
        self._pass_time(now)
        if self._somebody_waits:
            self._begun += 1

    def note_waiting(self, waiting: int, now: float) -> None:
        """So many wait from now on."""
        self._pass_time(now)
        self._somebody_waits = waiting > 0

    def retry_after(self, now: float, random: float) -> int:
        """A turn is refused: in how many seconds to come back. They are spread by ``random``, from 0 to 1,
        over the time that it takes to begin twice as many as were refused lately.
        """
        self._refused *= exp(-max(0.0, now - self._seen_refusing) / REFUSED_SECONDS)
        self._refused += 1
        self._seen_refusing = now
        spread = min(2 * self._refused * self.seconds_each, MOST_RETRY_SECONDS - LEAST_RETRY_SECONDS)
        return LEAST_RETRY_SECONDS + ceil(spread * random)

    def _pass_time(self, now: float) -> None:
        passed = max(0.0, now - self._seen)
        self._seen = now
        if self._somebody_waits:
            kept = exp(-passed / PACE_SECONDS)
            self._begun *= kept
            self._seconds = self._seconds * kept + PACE_SECONDS * (1 - kept)
