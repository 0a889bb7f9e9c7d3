"""Ends of turns that the database could not take: they wait here, in memory, until it can."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection

from agentapp.turns.ends import EndedTurn, Settlement

# Of one worker. While the database is away no turn begins, so there are never more than it has threads.
MAX_ENDS = 1_000
MAX_BYTES = 64 * 2**20
BYTES_PER_EVENT = 200  # of the objects that it is made of, besides its words

log = logging.getLogger(__name__)


class UnstoredEnds:
    """Oldest first. Nobody plays these turns any more, but the worker keeps them from being taken for
    abandoned until they are stored.
    """

    def __init__(self, max_ends: int = MAX_ENDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_ends, self._max_bytes = max_ends, max_bytes
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Settlement, int]] = {}  # by the turn's id, with its size
        self._bytes = 0
        self._lost: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, settlement: Settlement) -> bool:
        """Whether there is room for it. The oldest ones make room."""
        turn, size = settlement.turn, _size(settlement.turn)
        if size > self._max_bytes:
            self.give_up(turn)
            return False
        with self._lock:
            self._waiting[turn.id] = settlement, size
            self._bytes += size
            given_up = []
            while len(self._waiting) > self._max_ends or self._bytes > self._max_bytes:
                oldest, its_size = self._waiting.pop(next(iter(self._waiting)))
                self._bytes -= its_size
                given_up.append(oldest.turn)
        for oldest_turn in given_up:
            log.error("the end of a turn is lost: too many wait for the database", extra=_ids(oldest_turn))
            self.give_up(oldest_turn)
        return True

    def turn_ids(self) -> Collection[str]:
        with self._lock:
            return list(self._waiting)

    def all(self) -> list[Settlement]:
        with self._lock:
            return [settlement for settlement, _ in self._waiting.values()]

    def remove(self, turn_id: str) -> None:
        """It is stored, or never will be."""
        with self._lock:
            _, size = self._waiting.pop(turn_id, (None, 0))
            self._bytes -= size

    def put_last(self, turn_id: str) -> None:
        """It failed alone: the others come first."""
        with self._lock:
            if (found := self._waiting.pop(turn_id, None)) is not None:
                self._waiting[turn_id] = found

    def give_up(self, turn: EndedTurn) -> None:
        """Nobody will store how this turn ended: it is to be interrupted, with what was stored of it."""
        with self._lock:
            self._lost.add(turn.id)

    def lost(self) -> Collection[str]:
        """The turns that were given up here and may still count as running."""
        with self._lock:
            return set(self._lost)

    def forget_lost(self, turn_ids: Collection[str]) -> None:
        with self._lock:
            self._lost.difference_update(turn_ids)


def _size(turn: EndedTurn) -> int:
    result = turn.result
    packed = json.dumps([event.packed() for event in turn.events])
    html = result.rendered.html if result.rendered is not None else ""
    return len(packed) + len(result.reply) + len(html) + BYTES_PER_EVENT * len(turn.events)


def _ids(turn: EndedTurn) -> dict[str, str]:
    return {"turn_id": turn.id, "session_id": turn.scope.session_id, "request_id": turn.scope.request_id}
