"""A turn's events as a Server-Sent Events stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentapp.errors import LoginRequired
from agentapp.events import TurnCompleted
from agentapp.turns.feed import NumberedEvent, Subscription
from agentapp.web.markdown import render


class EventStream(Iterator[bytes]):
    """A class and not a generator, so that ``close()`` reaches the subscription before the first pull too."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __next__(self) -> bytes:
        """All events that are there now, in one piece. On a busy machine that may be many."""
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
        data["html"] = str(render(event.result.reply))
    return f"id: {numbered.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
