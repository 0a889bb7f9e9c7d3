"""A turn's events as a Server-Sent Events stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentapp.turn import Turn, TurnEvent
from agentapp.web.markdown import render


class EventStream(Iterator[bytes]):
    """Closing it closes the turn, also before anything was read: see `Turn`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __next__(self) -> bytes:
        event = next(self._turn)
        return b": still here\n\n" if event is None else encoded(event)

    def close(self) -> None:
        self._turn.close()


def encoded(event: TurnEvent) -> bytes:
    data = event.data
    if event.kind == "turn_completed":
        data = {**data, "html": str(render(data["reply"]))}
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()
