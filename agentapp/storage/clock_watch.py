"""The job that reads the database's clock again and again, and says when this host's is wrong."""

from __future__ import annotations

import logging

from agentapp.storage.clock import MOST_APART_SECONDS, DatabaseClock
from agentapp.telemetry import Telemetry

# In that time a clock drifts by a few thousandths of a second. It is so short for the sake of a virtual
# machine that was paused: there not even the steady clock has gone on.
READ_SECONDS = 5.0

log = logging.getLogger(__name__)


class WatchClock:  # agentapp: shared ok - changed by the heartbeat's thread alone
    """It is told once, again when it has changed much, and when all is well again."""

    name = "read the database's clock"

    def __init__(self, clock: DatabaseClock, telemetry: Telemetry) -> None:
        self._clock, self._telemetry = clock, telemetry
        self._told: float | None = None  # by how much the host's clock was ahead then

    def run(self, now: float) -> bool:
        self._clock.read_again()
        ahead = self._clock.host_ahead()
        if ahead is not None:
            self._telemetry.gauge("host_clock_ahead_seconds", ahead)
            self._tell(ahead, self._clock.problem())
        return False

    def _tell(self, ahead: float, problem: str | None) -> None:
        if problem is None:
            if self._told is not None:
                log.warning("this host's clock agrees with the database server's again")
            self._told = None
        elif self._told is None or abs(ahead - self._told) > MOST_APART_SECONDS:
            log.warning("%s", problem)
            self._told = ahead
