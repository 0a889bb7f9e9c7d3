"""The agents that are at work in this worker, and those that are still there although their turn is over."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from agentapp.agents.team import Crew

KEPT_SECONDS = 10.0  # after the end of a turn: whoever plays or reads it may be slow to let go of it


@dataclass(slots=True)
class _Made:
    crew: weakref.ref[Crew]
    request_id: str
    agents: int
    ended_at: float | None = None


class LiveAgents:
    """Knows the crews without keeping them: a crew goes with the last who refers to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[int, _Made] = {}

    def __len__(self) -> int:
        """Agents whose turn goes on."""
        with self._lock:
            return sum(each.agents for each in self._made.values() if each.ended_at is None)

    def add(self, crew: Crew) -> None:
        with self._lock:
            self._made[id(crew)] = _Made(weakref.ref(crew), crew.scope.request_id, len(crew.agents))

    def release(self, crew: Crew) -> None:
        """Its turn is over: soon nobody should have it any more."""
        with self._lock:
            self._made[id(crew)].ended_at = self._clock()

    def take_left_over(self) -> list[str]:
        """The requests whose crews somebody still has though they should be gone. Each is told once."""
        now, left = self._clock(), list[str]()
        with self._lock:
            for key, made in list(self._made.items()):
                if made.crew() is None:
                    del self._made[key]
                elif made.ended_at is not None and now - made.ended_at > KEPT_SECONDS:
                    del self._made[key]
                    left.append(made.request_id)
        return left
