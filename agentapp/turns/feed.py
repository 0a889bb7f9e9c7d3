"""A turn as those see it who follow it: its events as far as this worker has them, and more as they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from agentapp.errors import LoginRequired
from agentapp.events import Usage
from agentapp.isolation import Scope
from agentapp.storage.log import Event, unpacked
from agentapp.storage.values import Status, Told

# A follower hears at least this often that nothing is new: proxies close what is silent for long.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event with its number: gap-free, from 1, within its turn."""

    number: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, as its followers are told."""

    status: Status
    reply: str
    agent: str
    title: str
    usage: Usage
    cost_usd: float | None
    error_code: str | None = None
    error_message: str | None = None

    def as_event(self, turn_id: str, request_id: str) -> Event:
        data: dict[str, Any] = {
            "turn_id": turn_id,
            "request_id": request_id,
            "status": self.status,
            "reply": self.reply,
            "agent": self.agent,
            "title": self.title,
            "usage": {
                "input_tokens": self.usage.input_tokens,
                "output_tokens": self.usage.output_tokens,
                "model_calls": self.usage.model_calls,
            },
            "cost_usd": self.cost_usd,
        }
        if self.error_code:
            data["error"] = {"code": self.error_code, "message": self.error_message}
        return "turn_completed", data


class Live:
    """One turn. Whoever plays it, or reads of it in the journal, adds to it; any number may follow."""

    def __init__(self, scope: Scope, turn_id: str) -> None:
        self.scope, self.turn_id = scope, turn_id
        self._events: list[Event] = []
        self._ended = False
        self._news = threading.Condition()

    @classmethod
    def ended(cls, scope: Scope, told: Told) -> Live:
        """A turn that is over, as it was written down."""
        live = cls(scope, told.turn.id)
        live.finish(told)
        return live

    @property
    def known(self) -> int:
        return len(self._events)

    def since(self, number: int) -> list[Event]:
        """All events after that number."""
        return self._events[number:]

    def add(self, events: Iterable[Event]) -> None:
        with self._news:
            self._events.extend(events)
            self._news.notify_all()

    def end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()

    def finish(self, told: Told) -> None:
        """Add what is not known yet of a turn that is over, and its end."""
        turn = told.turn
        usage = Usage(turn.input_tokens, turn.output_tokens, turn.model_calls)
        outcome = Outcome(
            turn.status,
            told.reply,
            turn.agent,
            told.title,
            usage,
            turn.cost_usd,
            turn.error_code,
            turn.error_message,
        )
        events = unpacked(turn.log, told.message, told.reply)
        self.add([*events[self.known :], outcome.as_event(turn.id, turn.request_id)])
        self.end()

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def wait(self, number: int, patience: float, is_cut: Callable[[], bool]) -> tuple[list[Event], bool]:
        """The events after that number, if need be after waiting for one, and whether the turn is over."""
        with self._news:
            self._news.wait_for(lambda: self.known > number or self._ended or is_cut(), patience)
            return self.since(number), self._ended


class Follower(Iterator[TurnEvent | None]):
    """The events of a turn after a given number, until it ends; ``None`` means "nothing new, still at it".

    Raises `LoginRequired` when the login under which it was opened has ended. ``close()`` it: it
    holds a place among those who follow.
    """

    def __init__(self, live: Live, after: int, token: str | None, held: ExitStack) -> None:
        self.live, self.token = live, token
        self._number, self._held = after, held
        self._next: deque[Event] = deque()
        self._over = self._is_cut = self._must_sign_in = False

    def __next__(self) -> TurnEvent | None:
        return self.within(PATIENCE)

    def within(self, patience: float) -> TurnEvent | None:
        """The next event, or ``None`` if that takes longer."""
        if not self._next and not self._over:
            self._listen(patience)
        if self._must_sign_in:
            raise LoginRequired("Sign in first.")
        if self._is_cut:
            raise StopIteration
        if self._next:
            self._number += 1
            return TurnEvent(self._number, *self._next.popleft())
        if self._over:
            raise StopIteration
        return None

    @property
    def has_more(self) -> bool:
        """Whether the next one comes without waiting."""
        return bool(self._next)

    def finish(self, patience: float | None = None) -> dict[str, Any] | None:
        """Wait for the end and give what it says; ``None`` if it does not come in time."""
        ends = None if patience is None else time.monotonic() + patience
        last: TurnEvent | None = None
        while ends is None or time.monotonic() < ends:
            try:
                last = self.within(PATIENCE if ends is None else max(0.0, ends - time.monotonic())) or last
            except StopIteration:
                break
        return last.data if last is not None and last.kind == "turn_completed" else None

    def cut(self, *, signed_out: bool) -> None:
        """End it from outside: the login it was opened under is over, or this worker is."""
        self._is_cut, self._must_sign_in = True, signed_out
        self.live.wake()

    def close(self) -> None:
        self._held.close()

    def _listen(self, patience: float) -> None:
        events, self._over = self.live.wait(self._number, patience, lambda: self._is_cut)
        self._next.extend(events)
        if self._over and not events:
            self._next.extend(self._unheard_end())

    def _unheard_end(self) -> list[Event]:
        """A worker that died had told more than it had written down, and the end has a number that was told
        already, for something else. It is told after whatever was.
        """
        last = self.live.since(self.live.known - 1)
        return last if last and last[0][1].get("status") == "interrupted" else []
