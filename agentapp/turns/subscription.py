"""A subscription is one reader of a turn's feed. `Subscriptions` are all that are open in this worker."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

from agentapp.errors import LoginRequired
from agentapp.events import TurnCompleted
from agentapp.turns.feed import Feed, NumberedEvent

# A reader gets at least this often a sign that nothing is new: proxies close what is silent for long.
KEEPALIVE_SECONDS = 5.0


class Subscription(Iterator[NumberedEvent | None]):
    """The events of a turn after a given number, until it ends; ``None`` means "nothing new yet".

    Raises `LoginRequired` when the login under which it was opened has ended. ``close()`` it: it
    holds one of the worker's stream slots.
    """

    def __init__(self, feed: Feed, after: int, login: str | None, held: ExitStack) -> None:
        self.feed, self.login = feed, login
        self._number, self._held = after, held
        self._next: deque[NumberedEvent] = deque()
        self._over = self._is_cut = self._must_sign_in = False

    def __next__(self) -> NumberedEvent | None:
        return self.next_within(KEEPALIVE_SECONDS)

    def next_within(self, seconds: float) -> NumberedEvent | None:
        """The next event, or ``None`` if that takes longer."""
        if not self._next and not self._over:
            self._wait(seconds)
        if self._must_sign_in:
            raise LoginRequired("Sign in first.")
        if self._is_cut:
            raise StopIteration
        if self._next:
            event = self._next.popleft()
            self._number = event.number
            return event
        if self._over:
            raise StopIteration
        return None

    @property
    def has_more(self) -> bool:
        """Whether the next one comes without waiting."""
        return bool(self._next)

    def finish(self, seconds: float | None = None) -> TurnCompleted | None:
        """Wait for the last event and give it; ``None`` if it does not come in time."""
        ends = None if seconds is None else time.monotonic() + seconds
        last: NumberedEvent | None = None
        while ends is None or time.monotonic() < ends:
            try:
                wait = KEEPALIVE_SECONDS if ends is None else max(0.0, ends - time.monotonic())
                last = self.next_within(wait) or last
            except StopIteration:
                break
        return last.event if last is not None and isinstance(last.event, TurnCompleted) else None

    def cut(self, *, signed_out: bool) -> None:
        """End it from another thread: its login is over, or this worker is."""
        self._is_cut, self._must_sign_in = True, signed_out
        self.feed.wake()

    def close(self) -> None:
        self._held.close()

    def _wait(self, seconds: float) -> None:
        events, self._over = self.feed.wait(self._number, seconds, lambda: self._is_cut)
        self._next.extend(events)
        if self._over and not events:
            self._next.extend(self._missed_end())

    def _missed_end(self) -> list[NumberedEvent]:
        """A worker that died had shown more events than it had stored. Then the end of the turn has a number
        that this reader knows already, for something else; it is shown with the number after that.
        """
        for last in self.feed.since(self.feed.length - 1):
            if isinstance(last.event, TurnCompleted) and last.event.result.status == "interrupted":
                return [NumberedEvent(self._number + 1, last.event)]
        return []


class Subscriptions:
    """All subscriptions of this worker, so that the heartbeat can end those whose login has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Subscription] = weakref.WeakSet()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def all(self) -> list[Subscription]:
        with self._lock:
            return list(self._open)

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._open.add(subscription)

    def remove(self, subscription: weakref.ref[Subscription]) -> None:
        with self._lock:
            if (found := subscription()) is not None:
                self._open.discard(found)
