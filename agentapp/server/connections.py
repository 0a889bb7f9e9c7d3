"""The connections of one worker that wait for their client, by what they wait for, and who of them must go.

None of them holds a thread. Those that a thread answers are not here.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from agentapp.server.connection import Connection
from agentapp.server.limits import (
    HALF_SENT_AFTER_SECONDS,
    HALF_SENT_WORKER,
    MAX_HALF_SENT_BYTES,
    MAX_UNSENT_BYTES,
)


class Waits(Enum):
    """What a connection waits for. In this order they make room for new ones."""

    TO_CLOSE = "for the client to hang up"
    IDLE = "for the first byte of a request"
    RECEIVING = "for the rest of a request"
    SENDING = "for the client to take the rest of its answer"


class Connections:
    """In each group the oldest comes first."""

    def __init__(self, half_sent_address: int | None = None) -> None:
        self._half_sent_address = half_sent_address
        self._groups: dict[Waits, dict[Connection, None]] = {waits: {} for waits in Waits}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def limit_half_sent(self, an_address: int | None) -> None:
        self._half_sent_address = an_address

    def count(self, waits: Waits) -> int:
        return len(self._groups[waits])

    def add(self, connection: Connection, waits: Waits) -> None:
        connection.waits = waits
        self._groups[waits][connection] = None

    def remove(self, connection: Connection) -> None:
        if connection.waits is not None:
            del self._groups[connection.waits][connection]
            connection.waits = None

    def all(self, waits: Waits) -> list[Connection]:
        return list(self._groups[waits])

    def late(self, now: float) -> list[Connection]:
        """Those whose time is over."""
        receiving = self._groups[Waits.RECEIVING]
        others = (group for waits, group in self._groups.items() if waits is not Waits.RECEIVING)
        return [
            *(each for each in receiving if each.is_late(now)),
            *(each for group in others for each in group if now >= each.deadline),
        ]

    def too_many(self, now: float) -> list[Connection]:
        """The oldest half-sent requests that are more than an address, or all together, may have."""
        half_sent = [
            each for each in self._groups[Waits.RECEIVING] if now - each.since >= HALF_SENT_AFTER_SECONDS
        ]
        spare = len(half_sent) - HALF_SENT_WORKER
        spare_bytes = sum(each.incoming.size for each in half_sent) - MAX_HALF_SENT_BYTES
        of_address = Counter(each.address for each in half_sent)
        going: list[Connection] = []
        for each in half_sent:
            if spare > 0 or spare_bytes > 0 or self._has_too_many(of_address[each.address]):
                going.append(each)
                of_address[each.address] -= 1
                spare, spare_bytes = spare - 1, spare_bytes - each.incoming.size
        return going

    def too_much_unsent(self) -> list[Connection]:
        """If the answers that clients are slow to take are too much together: the oldest of whoever has most
        of them.
        """
        sending = self._groups[Waits.SENDING]
        of_owner: Counter[str] = Counter()
        for each in sending:
            of_owner[each.user or each.address] += each.unsent_bytes
        going: list[Connection] = []
        left, total = list(sending), of_owner.total()
        while total > MAX_UNSENT_BYTES:
            owner = of_owner.most_common(1)[0][0]
            oldest = next(each for each in left if (each.user or each.address) == owner)
            left.remove(oldest)
            going.append(oldest)
            of_owner[owner] -= oldest.unsent_bytes
            total -= oldest.unsent_bytes
        return going

    def to_make_room(self) -> Connection | None:
        """The one that has the least to lose if a new connection needs its place: a stranger's, or one of the
        user who has most of them.
        """
        by_loss = [each for waits in Waits for each in self._groups[waits]]
        if not by_loss:
            return None
        stranger = next((each for each in by_loss if each.user is None), None)
        if stranger is not None:
            return stranger
        greedy = Counter(each.user for each in by_loss).most_common(1)[0][0]
        return next(each for each in by_loss if each.user == greedy)

    def _has_too_many(self, count: int) -> bool:
        return self._half_sent_address is not None and count > self._half_sent_address
