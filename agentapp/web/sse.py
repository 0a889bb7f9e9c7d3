"""A turn's events as a Server-Sent Events stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Protocol

from agentapp.errors import LoginRequired
from agentapp.events import TurnCompleted
from agentapp.turns.feed import KEEPALIVE_SECONDS, NumberedEvent, Subscription
from agentapp.turns.played import PlayedSubscription
from agentapp.web.markdown import rendered

# In milliseconds, as a browser's EventSource understands it too. So long that pages which take each other's
# place do not keep the server busy.
RECONNECT_LATER = b"retry: 15000\n: a newer stream of yours has taken the place of this one\n\n"
STILL_HERE = b": still here\n\n"


class Client(Protocol):
    """The client of this very request, to be written to at any time. No call waits for it.

    A server that has this puts it into the WSGI environment, as `agentapp.server.limits.CLIENT`.
    """

    def send_now(self, piece: bytes) -> None:
        """Raises `OSError` if the client is gone, or so far behind that it is given up."""

    def end_now(self) -> None:
        """Tell the client at once that nothing more comes."""


class EventStream(Iterator[bytes]):
    """A class and not a generator, so that ``close()`` reaches the subscription before the first pull too."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._is_told_to_reconnect = False

    def __next__(self) -> bytes:
        """All events that are there now, in one piece. On a busy machine that may be many."""
        try:
            return self._next_events()
        except StopIteration:
            if not self._subscription.is_displaced or self._is_told_to_reconnect:
                raise
            self._is_told_to_reconnect = True
            return RECONNECT_LATER

    def _next_events(self) -> bytes:
        try:
            event = next(self._subscription)
            if event is None:
                return STILL_HERE
            encoded = [encode(event)]
            while self._subscription.has_more and (event := next(self._subscription)) is not None:
                encoded.append(encode(event))
        except LoginRequired:
            raise StopIteration from None  # a client that connects again is told to sign in
        return b"".join(encoded)

    def close(self) -> None:
        self._subscription.close()


class PlayedEventStream(Iterator[bytes]):
    """The stream of who sent the message. To pull it is to play the turn, and one pull plays all of it.

    What there is to tell is sent whenever the turn is about to wait, in one piece. So it does not matter that
    the thread cannot come back from the middle of a read: it sends from there, also that all is well.
    """

    def __init__(self, subscription: PlayedSubscription, client: Client) -> None:
        self._subscription, self._client = subscription, client
        self._unsent: list[bytes] = []
        self._last_sent = time.monotonic()
        self._has_client = True
        subscription.before_wait(self._send)

    def __next__(self) -> bytes:
        try:
            for event in self._subscription:
                if event is not None and self._has_client:
                    self._unsent.append(encode(event))
        except LoginRequired:
            pass  # a client that connects again is told to sign in
        self._send()
        raise StopIteration

    def close(self) -> None:
        """If the client was cut off, the turn is played on from here, and nobody is told."""
        self._has_client = False
        self._subscription.close()

    def _send(self) -> None:
        if not self._has_client:
            return
        if self._subscription.is_cut:
            self._has_client = False
            self._client.end_now()
            return
        now = time.monotonic()
        if not self._unsent and now - self._last_sent < KEEPALIVE_SECONDS:
            return
        pieces, self._unsent, self._last_sent = self._unsent or [STILL_HERE], [], now
        try:
            self._client.send_now(b"".join(pieces))
        except OSError:
            self._has_client = False  # it may come back and follow the turn


def encode(numbered: NumberedEvent) -> bytes:
    event, data = numbered.event, numbered.data
    if isinstance(event, TurnCompleted):
        data["html"] = rendered(event.result.reply, event.result.rendered).html
    return f"id: {numbered.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
