"""Workers share new connections: who has more than another leaves the next ones to that one, for a moment."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from agentapp.server.connections import Connections
from agentapp.server.request_loop import ACCEPTED_AT_ONCE, LEFT_WHEN_AHEAD_SECONDS, MOST_AHEAD, RequestLoop

LISTENER: Any = None


class Loop(RequestLoop):
    """Without gunicorn and sockets. The worker with the fewest connections has ``others``."""

    def __init__(self, others: float, waiting: int) -> None:
        self._connections, self._answering, self._has_left_some = Connections(), 0, False
        self.tpool = SimpleNamespace(are_full=False)
        self.waiting, self.noted, self.pauses = waiting, -1, list[float]()
        self.share_connections(self._note, lambda: others)

    def _note(self, count: int) -> None:
        self.noted = count

    def _accept_one(self, listener: Any) -> bool:
        if not self.waiting:
            return False
        self.waiting -= 1
        self._answering += 1
        return True

    def _pause_accepting(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return False


def test_who_is_ahead_leaves_the_next_ones_to_the_others_for_a_moment() -> None:
    loop = Loop(others=3, waiting=100)
    loop.accept(LISTENER)
    assert (loop._answering, loop.noted) == (3 + MOST_AHEAD, 3 + MOST_AHEAD)
    assert loop.pauses == [LEFT_WHEN_AHEAD_SECONDS]


def test_those_that_nobody_took_meanwhile_are_taken() -> None:
    """The other worker may be busy, or just about to end."""
    loop = Loop(others=0, waiting=100)
    loop.accept(LISTENER)
    loop.accept(LISTENER)
    assert loop._answering == MOST_AHEAD + ACCEPTED_AT_ONCE
    assert loop.pauses == [LEFT_WHEN_AHEAD_SECONDS] * 2, "and those that come then are left for a moment too"


def test_who_is_behind_takes_many_at_once_and_does_not_pause() -> None:
    for others in (1000.0, math.inf):
        loop = Loop(others, waiting=100)
        loop.accept(LISTENER)
        assert (loop._answering, loop.pauses) == (ACCEPTED_AT_ONCE, [])


def test_a_worker_that_stops_takes_all_that_has_come_however_many_the_others_have() -> None:
    loop = Loop(others=0, waiting=100)
    loop.accept(LISTENER, 2048)
    assert (loop.waiting, loop.pauses) == (0, [])


def test_a_worker_whose_threads_are_taken_leaves_the_rest() -> None:
    loop = Loop(others=1000, waiting=100)
    loop.tpool.are_full = True
    loop.accept(LISTENER)
    assert loop._answering == 1
