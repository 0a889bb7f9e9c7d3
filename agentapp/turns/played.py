"""The subscription of who sent the message: the thread that reads it plays the turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from agentapp.agents.drivers.shared import nothing
from agentapp.guardrails.streams import StreamSlot
from agentapp.isolation import Binder
from agentapp.turns.feed import NumberedEvent, Subscription
from agentapp.turns.local import LocalTurns
from agentapp.turns.turn import Turn


class PlayedSubscription(Subscription):
    """To read it is to play the turn, so that a turn needs no thread besides that of its request. The events
    are in the turn's feed too, where others find them.

    ``close()`` plays what is left: the turn goes on to its end whether or not anybody reads it. The thread is
    busy until then, and so the stream slot is kept until then.
    """

    def __init__(
        self,
        turn: Turn,
        local: LocalTurns,
        binder: Binder,
        login: str | None,
        held: ExitStack,
        slot: StreamSlot | None = None,
    ) -> None:
        super().__init__(turn.feed, 0, login, held, slot)
        self._local, self._binder = local, binder
        self._turn: Turn | None = turn
        local.add(turn, self)

    def before_wait(self, call: Callable[[], object]) -> None:
        """Have this called, by the thread that reads, whenever the turn is about to wait. That is also the
        only time to notice that the subscription is cut while the model is silent.
        """
        if self._turn is not None:
            self._turn.before_wait = call

    def next_within(self, seconds: float) -> NumberedEvent | None:
        """The next event, however long that takes: nobody else plays the turn."""
        event = None if self.is_cut else self._pull()
        self.raise_if_cut()
        return event

    def close(self) -> None:
        try:
            with suppress(StopIteration):
                while self._turn is not None:
                    self._pull()
        finally:
            super().close()

    def _pull(self) -> NumberedEvent | None:
        if self._turn is None:
            raise StopIteration
        try:
            with self._binder.bound(self._turn.scope):
                return next(self._turn)
        except BaseException:  # mostly StopIteration; whatever it is, the turn goes no further
            self._end(self._turn)
            raise

    def _end(self, turn: Turn) -> None:
        self._turn, turn.before_wait = None, nothing
        self._local.remove(turn)
        turn.feed.end()
