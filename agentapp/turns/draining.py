"""How a worker ends: its turns go on for most of the time it has, then they are interrupted."""

from __future__ import annotations

import time

from agentapp.turns.feed import Subscriptions
from agentapp.turns.local import LocalTurns
from agentapp.turns.remote import RemoteTurns
from agentapp.turns.unstored import UnstoredEnds

# Before the grace is over, interrupted turns are stored and their readers told: this takes seconds, not more.
SECONDS_TO_STORE = 5.0
SECONDS_WITHOUT_GRACE = 2.0


class Draining:  # agentapp: shared ok - two floats, written when the worker begins to end
    """Not begun until `begin` is called. It has no lock: `begin` may run in a signal handler."""

    def __init__(
        self, local: LocalTurns, remote: RemoteTurns, subscriptions: Subscriptions, unstored: UnstoredEnds
    ) -> None:
        self._local, self._remote, self._subscriptions = local, remote, subscriptions
        self._unstored = unstored
        self._interrupts_at: float | None = None
        self._ends_at: float | None = None

    def begin(self, grace: float) -> None:
        """Let turns go on for about so many seconds. A later call can only shorten that.

        Without any grace they are interrupted at once, and have a moment to be stored.
        """
        now = time.monotonic()
        ends = now + (grace if grace > 0 else SECONDS_WITHOUT_GRACE)
        if self._ends_at is not None and self._ends_at <= ends:
            return
        self._interrupts_at = ends - min(SECONDS_TO_STORE, grace / 2) if grace > 0 else now
        self._ends_at = ends
        if grace <= 0:
            self.interrupt_if_due(now)

    @property
    def has_begun(self) -> bool:
        return self._ends_at is not None

    @property
    def is_over(self) -> bool:
        """Whether the worker need not wait any more: all its turns have ended and are stored, or the time is
        up.
        """
        # In this order: a turn is among those whose end waits to be stored before it leaves the others.
        all_stored = self._local.wait(0) and not len(self._unstored)
        return all_stored or (self._ends_at is not None and time.monotonic() > self._ends_at)

    def interrupt_if_due(self, now: float) -> None:
        """Interrupt the turns that this worker plays, and end the streams of turns that others play."""
        if self._interrupts_at is None or now < self._interrupts_at:
            return
        self._local.interrupt_all()
        for subscription in self._subscriptions.all():
            if self._remote.has(subscription.feed):
                subscription.cut(signed_out=False)
