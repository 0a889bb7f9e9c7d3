"""Reading a model's answer on the thread that plays the turn: how that thread waits, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from agentapp.agents.drivers.shared import Deadlines, SilenceTimer, nothing
from agentapp.agents.provider import Cancellation
from agentapp.errors import TurnFailed
from agentapp.events import Usage

T = TypeVar("T")

# The longest wait at a time. What else the thread has to see to, such as a reader who must be told that all
# is well or whose login has ended, waits that long at most.
LONGEST_WAIT = 1.0
SHORTEST_WAIT = 0.001


class WaitInPlace:
    """The `Waiting` of one call. It cancels the call when a deadline has passed; ``failure`` is then why."""

    def __init__(
        self,
        deadlines: Deadlines,
        turn_ends: float,
        cancellation: Cancellation,
        before_wait: Callable[[], object],
    ) -> None:
        self.failure: TurnFailed | None = None
        self._timer, self._turn_ends = SilenceTimer(deadlines), turn_ends
        self._longest = min(LONGEST_WAIT, deadlines.tick)
        self._cancellation, self._before_wait = cancellation, before_wait

    def wait_for(self, attempt: Callable[[float], T]) -> T:
        while not self._cancellation.is_cancelled:
            self._before_wait()
            began = time.monotonic()
            try:
                return attempt(self._next_wait(began))
            except TimeoutError:
                pass
            finally:
                self._timer.add(time.monotonic() - began)
            self._look_at_deadlines()
        raise TimeoutError("the call was given up")

    def heard(self, item: object) -> None:
        """The model has sent something, which restarts the deadline unless it only says what it costs."""
        if not isinstance(item, Usage):
            self._timer.restart()
        if time.monotonic() >= self._turn_ends:
            self._timer.next_wait(0.0)

    def end(self) -> None:
        """The connection is kept for another call, and this object with it, but nothing of the turn."""
        self._before_wait = nothing

    def _next_wait(self, now: float) -> float:
        """When all time is up it is still tried: on a busy machine the answer may be there, only not read."""
        left = min(self._timer.seconds_left, self._turn_ends - now)
        return max(SHORTEST_WAIT, min(left, self._longest))

    def _look_at_deadlines(self) -> None:
        try:
            self._timer.next_wait(self._turn_ends - time.monotonic())
        except TurnFailed as error:
            self.failure = error
            self._cancellation.cancel()
