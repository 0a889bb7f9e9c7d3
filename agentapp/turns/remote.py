"""Turns that other workers play and somebody follows here, read from the journal for all of them at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from agentapp.errors import NotFound
from agentapp.isolation import Scope
from agentapp.storage.live_turns import JournalStore
from agentapp.storage.telling import Tellings
from agentapp.turns.feed import Live


@dataclass(slots=True)
class _Mirror:
    live: Live
    followers: int = 0


class Mirrors:
    def __init__(self, store: JournalStore, tellings: Tellings) -> None:
        self._store, self._tellings = store, tellings
        self._lock = threading.Lock()
        self._mirrors: dict[str, _Mirror] = {}

    def follow(self, scope: Scope, turn_id: str) -> Live:
        """Whether the turn is the scope's own was asked before."""
        with self._lock:
            mirror = self._mirrors.setdefault(turn_id, _Mirror(Live(scope, turn_id)))
            mirror.followers += 1
            return mirror.live

    def leave(self, live: Live) -> None:
        with self._lock:
            mirror = self._mirrors.get(live.turn_id)
            if mirror is None or mirror.live is not live:
                return
            mirror.followers -= 1
            if not mirror.followers:
                del self._mirrors[live.turn_id]

    def has(self, live: Live) -> bool:
        with self._lock:
            mirror = self._mirrors.get(live.turn_id)
            return mirror is not None and mirror.live is live

    def refresh(self) -> bool:
        """Bring all of them up to date. False if there is none."""
        with self._lock:
            lives = {turn_id: mirror.live for turn_id, mirror in self._mirrors.items()}
        if not lives:
            return False
        known = [(live.scope, turn_id, live.known) for turn_id, live in lives.items()]
        for turn_id, events in self._tellings.events_after(known).items():
            lives[turn_id].add(events)
        for turn_id in lives.keys() - self._store.living(lives.keys()):
            self._finish(lives[turn_id])
        return True

    def _finish(self, live: Live) -> None:
        with self._lock:
            self._mirrors.pop(live.turn_id, None)
        try:
            live.finish(self._tellings.look(live.scope, live.turn_id))
        except NotFound:  # the chat was deleted
            live.end()
