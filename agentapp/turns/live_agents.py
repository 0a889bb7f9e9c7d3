"""The agents that are at work in this worker, and those that are still there although their turn is over."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from agentapp.agents.team import Crew

KEPT_SECONDS = 10.0  # after the end of a turn: whoever plays or reads it may be slow to let go of it


class CrewOf(NamedTuple):
    """The request that it was made for. Not its scope, which would outlive the turn here."""

    request_id: str
    tenant_id: str


@dataclass(slots=True)
class _Made:
    crew: weakref.ref[Crew]
    made_for: CrewOf
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
        made_for = CrewOf(crew.scope.request_id, crew.scope.tenant_id)
        with self._lock:
            self._made[id(crew)] = _Made(weakref.ref(crew), made_for, len(crew.agents))

    def release(self, crew: Crew) -> None:
        """Its turn is over: soon nobody should have it any more."""
        with self._lock:
            self._made[id(crew)].ended_at = self._clock()

    def take_left_over(self) -> list[CrewOf]:
        """Whose crews are still there because somebody keeps them. Each is told once."""
        if self._late():
            gc.collect()  # what only refers to itself is not kept by anybody
        left = self._late()
        with self._lock:
            for key in [key for key, made in self._made.items() if made.crew() is None]:
                del self._made[key]
            return [made.made_for for key in left if (made := self._made.pop(key, None)) is not None]

    def _late(self) -> list[int]:
        """The crews that are still there though their turn ended a while ago."""
        ends = self._clock() - KEPT_SECONDS
        with self._lock:
            return [
                key
                for key, made in self._made.items()
                if made.ended_at is not None and made.ended_at < ends and made.crew() is not None
            ]


E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """An error that is kept longer than a turn's agents. It and its causes came through the frames of those
    who worked with them, and would keep all that those had.
    """
    each: BaseException | None = error
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error
