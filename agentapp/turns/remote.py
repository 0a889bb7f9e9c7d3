"""Turns that other workers play and somebody reads here: their feeds, filled together.

If there is a live bus, their workers tell what is new. Those of which nothing is heard are read from the
database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from agentapp.errors import ForeignEvents, IsolationViolated, NotFound
from agentapp.isolation import Scope
from agentapp.turns.feed import Feed
from agentapp.turns.mailboxes import Owner, Piece
from agentapp.turns.stores import LiveTurnStore, TurnStore

# A worker that follows a turn asks the worker that plays it so often, and is answered though nothing is new.
ASK_SECONDS = 1.0
# After this time without an answer the turn is read from the database.
HEARD_SECONDS = 2.5
# Of a turn that is heard of it is only looked up so often whether it still runs.
LOOK_SECONDS = 2.0


@dataclass(slots=True)
class _RemoteFeed:
    """``worker`` plays it, as far as that is known. ``stored`` is how many events were read from the
    database, and ``heard`` when its worker was heard of last.
    """

    feed: Feed
    worker: str | None = None
    readers: int = 0
    stored: int = 0
    heard: float = float("-inf")


class RemoteTurns:  # agentapp: shared ok - behind its lock; the two times are each written by one thread
    def __init__(
        self, store: TurnStore, live: LiveTurnStore, report: Callable[[IsolationViolated], None]
    ) -> None:
        self._store, self._live, self._report = store, live, report
        self._lock = threading.Lock()
        self._feeds: dict[str, _RemoteFeed] = {}
        self._looked = float("-inf")

    def subscribe(self, scope: Scope, turn_id: str) -> Feed:
        """The caller has checked that the turn is the scope's own."""
        with self._lock:
            remote = self._feeds.setdefault(turn_id, _RemoteFeed(Feed(scope, turn_id)))
            remote.readers += 1
            return remote.feed

    def unsubscribe(self, feed: Feed) -> None:
        with self._lock:
            remote = self._of(feed)
            if remote is None:
                return
            remote.readers -= 1
            if not remote.readers:
                del self._feeds[feed.turn_id]

    def has(self, feed: Feed) -> bool:
        with self._lock:
            return self._of(feed) is not None

    def note_worker(self, feed: Feed, worker: str) -> None:
        with self._lock:
            if (remote := self._of(feed)) is not None:
                remote.worker = worker

    def worker_of(self, feed: Feed) -> str | None:
        with self._lock:
            remote = self._of(feed)
            return remote.worker if remote is not None else None

    def followed(self) -> list[tuple[str, Feed]]:
        """The turns whose workers can be asked, with these workers."""
        with self._lock:
            return [(each.worker, each.feed) for each in self._feeds.values() if each.worker is not None]

    def receive(self, piece: Piece, now: float) -> Feed | None:
        """What the worker of a turn says of it. If it does not fit, because what comes before was lost,
        nothing is added, and this is the feed that it should go to.
        """
        with self._lock:
            remote = self._feeds.get(piece.turn_id)
        if remote is None:
            return None
        if piece.owner != Owner.of(remote.feed.scope):
            self._refuse(remote.feed.scope, piece.turn_id)
            return None
        if not piece.is_over:  # if the database knows nothing of its end, that is where to look for more
            remote.heard = now
        return None if remote.feed.add_from(piece.first, piece.events) else remote.feed

    def expect_nothing(self) -> None:
        """From their workers: from now on all are read from the database."""
        with self._lock:
            for remote in self._feeds.values():
                remote.heard = float("-inf")

    def refresh(self, now: float | None = None) -> bool:
        """Bring up to date the feeds of which nothing is heard. False if there is no feed."""
        now = time.monotonic() if now is None else now
        with self._lock:
            feeds = dict(self._feeds)
        silent = {key: each for key, each in feeds.items() if now - each.heard > HEARD_SECONDS}
        if silent:
            self._read(silent)
        looks = now - self._looked >= LOOK_SECONDS
        at = feeds if looks else silent
        if at:
            self.finish(at.keys() - self._live.still_running(at.keys()))
        if looks:
            self._looked = now
        return bool(feeds)

    def _read(self, remotes: dict[str, _RemoteFeed]) -> None:
        known = [(each.feed.scope, turn_id, each.stored) for turn_id, each in remotes.items()]
        for turn_id, events in self._live.events_after(known, self._refuse).items():
            remote = remotes[turn_id]
            remote.feed.add_from(remote.stored + 1, events)
            remote.stored += len(events)

    def finish(self, turn_ids: Collection[str]) -> None:
        """These have ended, it is said; the database says how. One that it calls running goes on."""
        for turn_id in turn_ids:
            with self._lock:
                remote = self._feeds.get(turn_id)
            if remote is not None and self._ends(remote.feed):
                with self._lock:
                    if self._of(remote.feed) is not None:
                        del self._feeds[turn_id]

    def _ends(self, feed: Feed) -> bool:
        try:
            record = self._store.find(feed.scope, feed.turn_id)
        except NotFound:  # the chat was deleted
            feed.end()
            return True
        if record.result.status == "running":
            return False
        feed.finish(record)
        return True

    def _of(self, feed: Feed) -> _RemoteFeed | None:
        remote = self._feeds.get(feed.turn_id)
        return remote if remote is not None and remote.feed is feed else None

    def _refuse(self, scope: Scope, turn_id: str) -> None:
        self._report(ForeignEvents(scope, f"events of turn {turn_id}"))
