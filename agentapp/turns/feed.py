"""The feed: the events of one turn, numbered, as far as this worker has them, and more as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentapp.events import Event, TurnCompleted
from agentapp.isolation import Scope
from agentapp.turns.values import NewEvents, TurnRecord


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
    """One turn's events. One thread adds to it, and any number of subscriptions read it."""

    def __init__(self, scope: Scope, turn_id: str) -> None:
        self.scope, self.turn_id = scope, turn_id
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
    def events(self) -> tuple[Event, ...]:
        return tuple(each.event for each in self._events)

    def since(self, number: int) -> list[NumberedEvent]:
        """All events after that number."""
        return self._events[number:]

    def unwritten(self, written: int) -> NewEvents | None:
        """The events after the first ``written`` ones, to be stored; None if there are none."""
        new = tuple(each.event for each in self._events[written:])
        return NewEvents(self.scope, self.turn_id, written + 1, new) if new else None

    def add(self, event: Event) -> NumberedEvent:
        with self._changed:
            numbered = NumberedEvent(len(self._events) + 1, event)
            self._events.append(numbered)
            self._changed.notify_all()
        return numbered

    def add_all(self, events: Iterable[Event]) -> None:
        with self._changed:
            for event in events:
                self._events.append(NumberedEvent(len(self._events) + 1, event))
            self._changed.notify_all()

    def finish(self, record: TurnRecord) -> None:
        """Add what is missing of a turn that is over, and its end."""
        completed = TurnCompleted(record.turn_id, record.request_id, record.result)
        self.add_all([*record.events[self.length :], completed])
        self.end()

    def end(self) -> None:
        with self._changed:
            self._ended = True
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
