"""A turn's events as a Server-Sent Events stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentapp.errors import LoginRequired
from agentapp.turns.feed import Follower, TurnEvent
from agentapp.web.markdown import render


class EventStream(Iterator[bytes]):
    """A class and not a generator: ``close()`` reaches the follower even if nothing was pulled yet."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def __next__(self) -> bytes:
        """What there is to tell, in one piece: on a busy machine that may be many events."""
        try:
            event = next(self._follower)
            if event is None:
                return b": still here\n\n"
            told = [encoded(event)]
            while self._follower.has_more:
                told.append(encoded(next(self._follower)))
        except LoginRequired:
            raise StopIteration from None  # whoever comes back for more is told to sign in
        return b"".join(told)

    def close(self) -> None:
        self._follower.close()


def encoded(event: TurnEvent | None) -> bytes:
    if event is None:
        return b""
    data = event.data
    if event.kind == "turn_completed":
        data = {**data, "html": str(render(data["reply"]))}
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
