"""The feed of one turn: its events, numbered, and the subscriptions of those who read them."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from agentapp.agents.drivers.shared import nothing
from agentapp.errors import LoginRequired
from agentapp.events import Event, TurnCompleted
from agentapp.guardrails.streams import StreamSlot
from agentapp.isolation import Scope
from agentapp.turns.values import TurnRecord

# A reader gets at least this often a sign that nothing is new: proxies close what is silent for long.
KEEPALIVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event and its number: from 1, without gaps, within its turn."""

    number: int
    event: Event

    @property
    def kind(self) -> str:
        return self.event.kind

    @property
    def data(self) -> dict[str, Any]:
        return self.event.data


class Feed:
    """One turn's events, and any number of subscriptions read them. Where the turn is played, one thread adds
    to it and calls ``grew``. Elsewhere events come in two ways: from its worker and from the database.
    """

    def __init__(self, scope: Scope, turn_id: str) -> None:
        self.scope, self.turn_id = scope, turn_id
        self.grew: Callable[[], object] = nothing
        self._events: list[NumberedEvent] = []
        self._ended = False
        self._changed = threading.Condition()

    @classmethod
    def ended(cls, scope: Scope, record: TurnRecord) -> Feed:
        """The feed of a turn that is over, as it was stored."""
        feed = cls(scope, record.turn_id)
        feed.finish(record)
        return feed

    @property
    def length(self) -> int:
        return len(self._events)

    @property
    def is_over(self) -> bool:
        """Whether no more comes. Where the turn is played, its end is stored then, unless that has failed."""
        return self._ended or any(isinstance(each.event, TurnCompleted) for each in self._events[-1:])

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(each.event for each in self._events)

    def since(self, number: int) -> list[NumberedEvent]:
        """All events after that number."""
        return self._events[number:]

    def add(self, event: Event) -> NumberedEvent:
        with self._changed:
            numbered = NumberedEvent(len(self._events) + 1, event)
            self._events.append(numbered)
            self._changed.notify_all()
        self.grew()
        return numbered

    def add_from(self, first: int, events: Sequence[Event]) -> bool:
        """Add what is new of these, the first of which has the number ``first``. False, and nothing is added,
        if there are others before them that are missing.
        """
        with self._changed:
            known = self.length + 1 - first
            if known < 0:
                return False
            if not self._ended:
                self._extend(events[known:])
            return True

    def finish(self, record: TurnRecord) -> None:
        """Add what is missing of a turn that is over, and its end; once."""
        with self._changed:
            if not self._ended:
                completed = TurnCompleted(record.turn_id, record.request_id, record.result)
                self._extend([*record.events[self.length :], completed])
                self.end()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.grew()

    def _extend(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.append(NumberedEvent(len(self._events) + 1, event))
        self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look at their own condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait(
        self, number: int, seconds: float, is_cut: Callable[[], bool]
    ) -> tuple[list[NumberedEvent], bool]:
        """The events after that number, after waiting for one if there are none; and whether the turn is
        over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.length > number or self._ended or is_cut(), seconds)
            return self.since(number), self._ended


class Subscription(Iterator[NumberedEvent | None]):
    """The events of a turn after a given number, until it ends; ``None`` means "nothing new yet".

    Raises `LoginRequired` when the login under which it was opened has ended. ``close()`` it: mostly it
    holds one of the worker's stream slots.
    """

    def __init__(
        self, feed: Feed, after: int, login: str | None, held: ExitStack, slot: StreamSlot | None = None
    ) -> None:
        self.feed, self.login, self.slot = feed, login, slot
        self._number, self._held = after, held
        self._next: deque[NumberedEvent] = deque()
        self._over = self.is_cut = self._must_sign_in = False

    def __next__(self) -> NumberedEvent | None:
        return self.next_within(KEEPALIVE_SECONDS)

    def next_within(self, seconds: float) -> NumberedEvent | None:
        """The next event, or ``None`` if that takes longer."""
        if not self._next and not self._over:
            self._wait(seconds)
        self.raise_if_cut()
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
        """End it from another thread: its login is over, or this worker is, or it is displaced."""
        self.is_cut, self._must_sign_in = True, signed_out
        self.feed.wake()

    def raise_if_cut(self) -> None:
        if self._must_sign_in:
            raise LoginRequired("Sign in first.")
        if self.is_cut:
            raise StopIteration

    @property
    def is_displaced(self) -> bool:
        """Whether it must end because a newer stream of the same user needs its slot."""
        return self.slot is not None and self.slot.must_give_way

    def close(self) -> None:
        self._held.close()

    def _wait(self, seconds: float) -> None:
        events, self._over = self.feed.wait(self._number, seconds, lambda: self.is_cut)
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
    """All subscriptions of this worker, so that those can be ended whose login has ended, or that are to
    give way to newer ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._of_request: dict[str, weakref.ref[Subscription]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def all(self) -> list[Subscription]:
        with self._lock:
            return list(self._open)

    def end_displaced(self) -> None:
        for subscription in self.all():
            if subscription.is_displaced and not subscription.is_cut:
                subscription.cut(signed_out=False)

    def add(self, subscription: Subscription, request_id: str) -> None:
        with self._lock:
            self._open.add(subscription)
            self._of_request[request_id] = weakref.ref(subscription)

    def remove(self, subscription: weakref.ref[Subscription], request_id: str) -> None:
        with self._lock:
            self._of_request.pop(request_id, None)
            if (found := subscription()) is not None:
                self._open.discard(found)

    def close_left(self, request_id: str) -> bool:
        """The request is over. Whether it has left its subscription open, which is a defect."""
        with self._lock:
            left = self._of_request.pop(request_id, None)
        if left is not None and (found := left()) is not None:
            found.close()
        return left is not None
