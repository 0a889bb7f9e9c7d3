"""The deadlines that both drivers keep, and the timer of a model's silence."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.errors import ProviderTimeout, TurnTimeout


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: for the whole turn, for the first token of a model call, between any two tokens, for a tool.

    ``tick`` is how often a driver yields ``None`` while it waits.
    """

    turn: float = 120.0
    first_token: float = 30.0
    gap: float = 15.0
    tool: float = 5.0
    tick: float = 5.0

    @property
    def longest_silence(self) -> float:
        return max(self.first_token, self.gap)


@dataclass(slots=True)
class SilenceTimer:
    """How long one model call has been silent. Only the time spent waiting for the model counts, so that a
    reader who takes the pieces slowly does not make the model look silent.
    """

    deadlines: Deadlines
    silence: float = 0.0
    has_begun: bool = False

    def next_wait(self, turn_left: float) -> float:
        """Seconds to wait for the next piece before calling this again. Raises when a deadline has passed."""
        allowed = self.deadlines.gap if self.has_begun else self.deadlines.first_token
        if self.silence >= allowed:
            what = "stopped answering" if self.has_begun else "did not begin to answer"
            raise ProviderTimeout(f"The model {what} within {allowed:g} seconds.")
        if turn_left <= 0:
            raise TurnTimeout(f"The answer took longer than {self.deadlines.turn:g} seconds.")
        return min(allowed - self.silence, turn_left, self.deadlines.tick)

    def add(self, seconds: float) -> None:
        self.silence += seconds

    def restart(self) -> None:
        """The model has sent something."""
        self.silence, self.has_begun = 0.0, True
