"""Pages in flight: how many requests that are no streams may be under way, of each user and in all."""

from __future__ import annotations

from agentapp.errors import Busy
from agentapp.guardrails.seats import PAGE, Seats, key_of
from agentapp.guardrails.wording import stamp_refusal

RETRY_AFTER_SECONDS = 1.0
PAGES_WORKER = 256  # of all users together, in each worker


class PageSlots:
    """How many a user has is counted over all workers. Those that still wait for a thread count too."""

    def __init__(self, seats: Seats, per_user: int | None = None) -> None:
        self._seats, self._per_user = seats, per_user

    def taken(self) -> int:
        """In this worker."""
        return self._seats.count_here(PAGE)

    def take(self, user_id: str) -> PageSlot:
        """Raises `Busy` if no slot is free, or if the user has too many already."""
        user = key_of("pages", user_id)
        number = self._seats.take(PAGE, user) if self.taken() < PAGES_WORKER else None
        if number is None:
            raise self.busy()
        if self._per_user is not None and self._seats.count_user(user) > self._per_user:
            self._seats.release(number)
            raise _busy("pages", self._per_user)
        return PageSlot(self._seats, number)

    def busy(self, most: int = PAGES_WORKER, retry_after: float = RETRY_AFTER_SECONDS) -> Busy:
        """Why nothing more is taken in, whoever it is from."""
        return _busy("server", most, retry_after)

    def try_to_take(self, user_id: str) -> tuple[PageSlot | None, Busy | None]:
        """The slot, or why there is none: for a caller that cannot catch the error, because its modules were
        imported before the worker's.
        """
        try:
            return self.take(user_id), None
        except Busy as refusal:
            return None, refusal


class PageSlot:
    """Release it exactly once."""

    def __init__(self, seats: Seats, number: int) -> None:
        self._seats, self._number = seats, number

    def release(self) -> None:
        self._seats.release(self._number)


def _busy(scope: str, most: int, retry_after: float = RETRY_AFTER_SECONDS) -> Busy:
    return stamp_refusal(Busy(limit=most, used=most, retry_after=retry_after), scope)
