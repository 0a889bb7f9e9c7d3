"""Turns that other workers play and somebody reads here: their feeds, filled from the database together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from agentapp.errors import ForeignEvents, IsolationViolated, NotFound
from agentapp.isolation import Scope
from agentapp.turns.feed import Feed
from agentapp.turns.stores import LiveTurnStore, TurnStore


@dataclass(slots=True)
class _RemoteFeed:
    feed: Feed
    readers: int = 0


class RemoteTurns:
    def __init__(
        self, store: TurnStore, live: LiveTurnStore, report: Callable[[IsolationViolated], None]
    ) -> None:
        self._store, self._live, self._report = store, live, report
        self._lock = threading.Lock()
        self._feeds: dict[str, _RemoteFeed] = {}

    def subscribe(self, scope: Scope, turn_id: str) -> Feed:
        """The caller has checked that the turn is the scope's own."""
        with self._lock:
            remote = self._feeds.setdefault(turn_id, _RemoteFeed(Feed(scope, turn_id)))
            remote.readers += 1
            return remote.feed

    def unsubscribe(self, feed: Feed) -> None:
        with self._lock:
            remote = self._feeds.get(feed.turn_id)
            if remote is None or remote.feed is not feed:
                return
            remote.readers -= 1
            if not remote.readers:
                del self._feeds[feed.turn_id]

    def has(self, feed: Feed) -> bool:
        with self._lock:
            remote = self._feeds.get(feed.turn_id)
            return remote is not None and remote.feed is feed

    def refresh(self) -> bool:
        """Bring all feeds up to date. False if there is none."""
        with self._lock:
            feeds = {turn_id: remote.feed for turn_id, remote in self._feeds.items()}
        if not feeds:
            return False
        known = [(feed.scope, turn_id, feed.length) for turn_id, feed in feeds.items()]
        for turn_id, events in self._live.events_after(known, self._refuse).items():
            feeds[turn_id].add_all(events)
        for turn_id in feeds.keys() - self._live.still_running(feeds.keys()):
            self._finish(feeds[turn_id])
        return True

    def _refuse(self, scope: Scope, turn_id: str) -> None:
        self._report(ForeignEvents(scope, f"events of turn {turn_id}"))

    def _finish(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.pop(feed.turn_id, None)
        try:
            feed.finish(self._store.find(feed.scope, feed.turn_id))
        except NotFound:  # the chat was deleted
            feed.end()
