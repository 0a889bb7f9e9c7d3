"""A turn's events as a Server-Sent Events stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentapp.errors import LoginRequired
from agentapp.events import TurnCompleted
from agentapp.turns.feed import NumberedEvent, Subscription
from agentapp.web.markdown import rendered

# In milliseconds, as a browser's EventSource understands it too. So long that pages which take each other's
# place do not keep the server busy.
RECONNECT_LATER = b"retry: 15000\n: a newer stream of yours has taken the place of this one\n\n"


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
                return b": still here\n\n"
            encoded = [encode(event)]
            while self._subscription.has_more and (event := next(self._subscription)) is not None:
                encoded.append(encode(event))
        except LoginRequired:
            raise StopIteration from None  # a client that connects again is told to sign in
        return b"".join(encoded)

    def close(self) -> None:
        self._subscription.close()


def encode(numbered: NumberedEvent) -> bytes:
    event, data = numbered.event, numbered.data
    if isinstance(event, TurnCompleted):
        data["html"] = rendered(event.result.reply, event.result.rendered).html
    return f"id: {numbered.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
