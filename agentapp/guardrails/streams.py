"""Stream slots: how many threads may be busy with streams, of each kind, user and tenant.

The slots of a worker are shared out in that worker. How many a user has is counted over all workers.
"""

from __future__ import annotations

import threading
import weakref

from agentapp.errors import Busy
from agentapp.guardrails.seats import FOLLOWER, TURN, Seat, Seats, key_of
from agentapp.guardrails.wording import stamp_refusal

RETRY_AFTER_SECONDS = 2.0
# A tenant that asked for a stream so lately is waiting for one: then the others leave it half of the slots.
WANTED_SECONDS = 60.0
# Streams that were told to give way take a moment to end. A user who opens new ones faster than that is
# refused when so many times the limit are open.
MOST_WITH_ENDING = 2


class StreamSlots:
    """Takes its slots from the seats of this worker, of which some are never given to streams."""

    def __init__(self, seats: Seats, threads: int, reserved: int, per_user: int | None = None) -> None:
        self._seats, self._per_user = seats, per_user
        self._lock = threading.Lock()
        self.resize(threads, reserved)

    def resize(self, threads: int, reserved: int) -> None:
        """As many slots as there are threads beyond the reserved ones, and at least one."""
        self.total = max(1, min(threads, self._seats.width) - reserved)

    @property
    def most_turns(self) -> int:
        """So many may be taken by turns, if followers leave them."""
        return _all_but_an_eighth(self.total)

    def taken(self) -> int:
        """In this worker."""
        return self._seats.count_here(TURN, FOLLOWER)

    def take_for_turn(self, user_id: str, tenant_id: str) -> StreamSlot:
        """A slot for somebody who sends a message. Raises `Busy` if none is free: waiting for one would
        occupy the very thread that is missing.

        If the user has all slots that a user may have, the user's oldest follower gives way.
        """
        return self._take(TURN, user_id, tenant_id)

    def take_for_follower(self, user_id: str, tenant_id: str) -> StreamSlot:
        """The same for somebody who follows a turn that was begun elsewhere."""
        return self._take(FOLLOWER, user_id, tenant_id)

    def _take(self, kind: int, user_id: str, tenant_id: str) -> StreamSlot:
        user, tenant = key_of("streams", user_id), key_of("tenant", tenant_id)
        with self._lock:
            self._seats.note_asking(tenant)
            self._require_room(kind, tenant)
            number = self._seats.take(kind, user, tenant)
        if number is None:
            raise _busy("server", self.total)
        try:
            displaced = self._displace_oldest(user, number)
        except Busy:
            self._seats.release(number)
            raise
        return StreamSlot(self._seats, number, displaced_others=displaced)

    def _require_room(self, kind: int, tenant: bytes) -> None:
        most = _half(self.total) if kind == FOLLOWER else self.most_turns
        if self.taken() >= self.total or self._seats.count_here(kind) >= most:
            raise _busy("server", self.total)
        share_of = _half if self._seats.others_want(tenant, WANTED_SECONDS) else _all_but_an_eighth
        share, share_of_kind = share_of(self.total), share_of(most)
        taken = self._seats.count_tenant_here(tenant)
        if taken >= share:
            raise _busy("tenant", share)
        # Half of all slots is as much as there is for followers: so they are shared out by kind too. Seldom
        # does it have to be counted.
        if taken >= share_of_kind and self._seats.count_tenant_kind_here(tenant, kind) >= share_of_kind:
            raise _busy("tenant", share_of_kind)

    def _displace_oldest(self, user: bytes, newest: int) -> bool:
        """Have the user's oldest followers give way, as many as there are too many streams of the user's.
        Whether there were any.

        Another worker may do the same for the same user right now. Both find the same oldest ones.
        """
        if self._per_user is None:
            return False
        seats = self._seats.seats_of(user)
        staying = [seat for seat in seats if not seat.gives_way]
        too_many = len(staying) - self._per_user
        if too_many <= 0:
            return False
        oldest = _oldest_followers([seat for seat in staying if seat.number != newest])[:too_many]
        if len(oldest) < too_many or len(seats) > MOST_WITH_ENDING * self._per_user:
            raise _busy("streams", self._per_user)
        for seat in oldest:
            self._seats.displace(seat)
        return True


class StreamSlot:
    """Release it once or more often. If nobody does, it is released when this object is gone."""

    def __init__(self, seats: Seats, number: int, *, displaced_others: bool) -> None:
        self.displaced_others = displaced_others
        self._seats, self._number, self._opened = seats, number, seats.opened(number)
        # The garbage collector may do this at any moment, so it takes no lock.
        self._release = weakref.finalize(self, seats.release, number)
        self._release.atexit = False

    @property
    def must_give_way(self) -> bool:
        """Whether a newer stream of the same user needs this slot."""
        return self._seats.is_displaced(self._number, self._opened)

    def release(self) -> None:
        self._release()


def _half(slots: int) -> int:
    return max(1, slots // 2)


def _all_but_an_eighth(slots: int) -> int:
    return slots - slots // 8


def _oldest_followers(seats: list[Seat]) -> list[Seat]:
    followers = [seat for seat in seats if seat.kind == FOLLOWER]
    return sorted(followers, key=lambda seat: (seat.opened, seat.number))


def _busy(scope: str, most: int) -> Busy:
    return stamp_refusal(Busy(limit=most, used=most, retry_after=RETRY_AFTER_SECONDS), scope)
