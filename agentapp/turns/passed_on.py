"""The turns of this worker that are read at other workers, and how far each of these was told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentapp.events import TurnCompleted
from agentapp.turns.feed import Feed
from agentapp.turns.mailboxes import Owner, Piece

# Who follows a turn says so every second. After this time without a word it is not told any more.
FOLLOWS_SECONDS = 10.0


@dataclass(slots=True)
class _Reader:
    """``waits`` says that it has asked, and is answered even if nothing is new."""

    feed: Feed
    worker: str
    sent: int
    until: float
    waits: bool = True


class PieceFor(NamedTuple):
    reader: _Reader
    piece: Piece


class PassedOn:
    def __init__(self, grew: Callable[[], object]) -> None:
        """``grew`` is called by the thread that plays, whenever a turn has more to pass on."""
        self._grew = grew
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, str], _Reader] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._readers)

    def follow(self, feed: Feed, worker: str, after: int, now: float) -> None:
        """That worker has its events up to ``after``, whatever was sent to it: a letter may be lost."""
        known, until = max(0, min(after, feed.length)), now + FOLLOWS_SECONDS
        with self._lock:
            reader = self._readers.setdefault((feed.turn_id, worker), _Reader(feed, worker, known, until))
            reader.sent, reader.until, reader.waits = known, until, True
        feed.grew = self._grew

    def pieces(self, now: float) -> list[PieceFor]:
        """What is to be sent now. Tell `has_sent` if that has worked."""
        with self._lock:
            for key in [key for key, reader in self._readers.items() if reader.until < now]:
                del self._readers[key]
            readers = list(self._readers.values())
        found = ((reader, _next_piece(reader)) for reader in readers)
        return [PieceFor(reader, piece) for reader, piece in found if piece is not None]

    def has_sent(self, sent: Sequence[PieceFor]) -> None:
        with self._lock:
            for reader, piece in sent:
                if piece.is_over:
                    self._readers.pop((piece.turn_id, reader.worker), None)
                elif reader.sent == piece.first - 1:  # or it has asked for something else in the meantime
                    reader.sent += len(piece.events)
                    reader.waits = False


def _next_piece(reader: _Reader) -> Piece | None:
    feed, waits, sent = reader.feed, reader.waits, reader.sent
    is_over = feed.is_over  # asked first: what is added in between is then only told later
    events = tuple(each.event for each in feed.since(sent) if not isinstance(each.event, TurnCompleted))
    if not events and not is_over and not waits:
        return None
    return Piece(feed.turn_id, Owner.of(feed.scope), sent + 1, events, is_over)
