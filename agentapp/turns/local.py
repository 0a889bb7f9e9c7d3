"""The turns that this worker plays, each on a thread of its own, whoever reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from agentapp.agents.drivers.threads import run_in_own_thread
from agentapp.errors import TurnFailed, TurnInterrupted, TurnStopped
from agentapp.isolation import Binder
from agentapp.storage.live_turns import Entry
from agentapp.turns.feed import Live
from agentapp.turns.turn import Turn


@dataclass(slots=True)
class Played:
    turn: Turn
    live: Live
    written: int = 0

    def unwritten(self) -> Entry | None:
        events = self.live.since(self.written)
        return Entry(self.turn.scope, self.turn.id, self.written + 1, events) if events else None


class Running:
    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        # Re-entrant: a signal may come while the main thread holds it, and what handles it asks again.
        self._changed = threading.Condition(threading.RLock())
        self._turns: dict[str, Played] = {}

    def play(self, turn: Turn) -> Live:
        live = Live(turn.scope, turn.id)
        played = Played(turn, live)
        with self._changed:
            self._turns[turn.id] = played
        try:
            run_in_own_thread(self._binder.carried(turn.scope, lambda: self._run(played)), "agentapp-turn")
        except RuntimeError:  # no more threads to be had
            turn.halt(TurnFailed("This server is too busy to answer."))
            self._run(played)
        return live

    def live(self, turn_id: str) -> Live | None:
        with self._changed:
            played = self._turns.get(turn_id)
        return played.live if played else None

    def all(self) -> list[Played]:
        with self._changed:
            return list(self._turns.values())

    def stop(self, turn_id: str) -> bool:
        """At its user's wish. False if it is not played here."""
        with self._changed:
            played = self._turns.get(turn_id)
        if played is not None:
            played.turn.halt(TurnStopped())
        return played is not None

    def heed(self, played: list[Played], alive: Mapping[str, bool]) -> None:
        """What was found in the journal of the turns played at that time: some are to stop. One that is not
        there any more was given up by others, and must not go on spending.
        """
        for each in played:
            asked = alive.get(each.turn.id)
            if asked is None:
                each.turn.halt(TurnInterrupted())
            elif asked:
                each.turn.halt(TurnStopped())

    def interrupt(self) -> None:
        for played in self.all():
            played.turn.halt(TurnInterrupted())

    def wait(self, seconds: float) -> bool:
        """Whether all turns have ended, at the latest after so many seconds."""
        ends = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._turns, max(0.0, ends - time.monotonic()))

    def _run(self, played: Played) -> None:
        try:
            for event in played.turn:
                if event is not None:
                    played.live.add([(event.kind, event.data)])
        finally:
            with self._changed:
                del self._turns[played.turn.id]
                self._changed.notify_all()
            played.live.end()
