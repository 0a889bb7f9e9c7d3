"""The turns that this worker plays, on the thread of who sent the message or on threads of their own."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from agentapp.agents.threads import run_in_own_thread
from agentapp.errors import TurnFailed, TurnInterrupted, TurnStopped
from agentapp.isolation import Binder
from agentapp.turns.feed import Feed
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewEvents, Spent


@dataclass(slots=True)
class LocalTurn:
    """``written`` is how many of its events are stored, ``stored`` what it had spent when something was
    stored last, ``calls`` how many calls of a model are in that at least: the first one is stored with what
    was reserved. Only the heartbeat changes them.

    ``player`` is who pulls the turn. Without one it has a thread of its own.
    """

    turn: Turn
    player: weakref.ref[object] | None = None
    written: int = 0
    stored: Spent | None = None
    calls: int = 1
    _offered: NewEvents | None = None
    _calls_offered: int = 1

    @property
    def has_new_call(self) -> bool:
        """Whether a call has begun of which nothing is stored. It would cost nobody if the worker died."""
        return self.turn.calls_begun > self.calls

    def unwritten(self) -> NewEvents | None:
        """What is to be stored next. The same until it `has_written` it: whoever stores it may not know
        whether that has worked, and must not store other events in its place.
        """
        if self._offered is None:
            self._calls_offered = self.turn.calls_begun
            self._offered = self.turn.unwritten(self.written, self.stored)
        return self._offered

    def has_written(self, new: NewEvents) -> None:
        self.written += len(new.events)
        self.stored = new.spent
        self.calls = max(self.calls, self._calls_offered)
        self._offered = None


class LocalTurns:
    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        # Re-entrant: a signal may come while the main thread holds it, and what handles it asks again.
        self._changed = threading.Condition(threading.RLock())
        self._turns: dict[str, LocalTurn] = {}

    def add(self, turn: Turn, player: object) -> None:
        """It is played by somebody who pulls it to its end, and then calls `remove`."""
        with self._changed:
            self._turns[turn.id] = LocalTurn(turn, weakref.ref(player))

    def remove(self, turn: Turn) -> None:
        """It has ended."""
        with self._changed:
            del self._turns[turn.id]
            self._changed.notify_all()

    def play(self, turn: Turn) -> Feed:
        """Play it on a thread of its own."""
        with self._changed:
            self._turns[turn.id] = LocalTurn(turn)
        self._start(turn)
        return turn.feed

    def play_dropped(self) -> None:
        """Go on with those whose player is gone and has not played them to their end: an error came between.
        They are kept alive by the heartbeat, so they must not be left as they are.
        """
        with self._changed:
            turns = self._turns.values()
            dropped = [each for each in turns if each.player is not None and each.player() is None]
            for each in dropped:
                each.player = None
        for each in dropped:
            self._start(each.turn)

    def feed(self, turn_id: str) -> Feed | None:
        with self._changed:
            found = self._turns.get(turn_id)
        return found.turn.feed if found else None

    def all(self) -> list[LocalTurn]:
        with self._changed:
            return list(self._turns.values())

    def stop(self, turn_id: str) -> bool:
        """Stop it for its user. False if it is not played here."""
        with self._changed:
            found = self._turns.get(turn_id)
        if found is not None:
            found.turn.halt(TurnStopped())
        return found is not None

    def halt_as_stored(self, turns: list[LocalTurn], stored: Mapping[str, bool]) -> None:
        """Halt those of the turns that were asked to stop, and those that the database does not have any
        more: another worker has given them up, and they must not go on spending.
        """
        for each in turns:
            asked_to_stop = stored.get(each.turn.id)
            if asked_to_stop is None:
                each.turn.halt(TurnInterrupted())
            elif asked_to_stop:
                each.turn.halt(TurnStopped())

    def interrupt_all(self) -> None:
        for each in self.all():
            each.turn.halt(TurnInterrupted())

    def wait(self, seconds: float) -> bool:
        """Whether all turns have ended, at the latest after so many seconds."""
        ends = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._turns, max(0.0, ends - time.monotonic()))

    def _start(self, turn: Turn) -> None:
        try:
            run_in_own_thread(self._binder.carried(turn.scope, lambda: self._play(turn)), "agentapp-turn")
        except RuntimeError:  # no more threads can be started
            turn.halt(TurnFailed("This server is too busy to answer."))
            self._play(turn)

    def _play(self, turn: Turn) -> None:
        try:
            for _ in turn:
                pass  # every event is in the turn's feed, where its readers find it
        finally:
            self.remove(turn)
            turn.feed.end()
