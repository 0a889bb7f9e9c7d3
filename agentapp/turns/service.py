"""Where turns are played and followed: what a request may ask of them."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import dataclass

from agentapp.guardrails.streams import StreamSlots
from agentapp.isolation import Scope
from agentapp.storage.telling import Tellings
from agentapp.storage.values import Again, Sent
from agentapp.turns.feed import Follower, Live
from agentapp.turns.heartbeat import Journal
from agentapp.turns.local import Running
from agentapp.turns.remote import Mirrors
from agentapp.turns.turn import Answering


@dataclass(frozen=True, slots=True)
class Stage:
    """Lives as long as the process."""

    answering: Answering
    seats: StreamSlots
    running: Running
    mirrors: Mirrors
    journal: Journal
    tellings: Tellings

    def send(self, scope: Scope, sent: Sent, token: str | None = None) -> Follower:
        """Begin a turn, or refuse with nothing changed. It goes on to its end whether or not it is followed.

        The same message with the same key once more is the same turn.
        """
        with self._seated(scope) as held:
            begun = self.answering.begin(scope, sent.text, sent.key, after=sent.after, replaces=sent.replaces)
            if isinstance(begun, Again):
                live = self._found(scope, begun.turn_id, held)
            else:
                live = self.running.play(begun)
                self.journal.wake()
            return self._follower(live, 0, token, held.pop_all())

    def follow(self, scope: Scope, turn_id: str, after: int = 0, token: str | None = None) -> Follower:
        """The events of a turn after that number, from whichever worker plays it."""
        with self._seated(scope) as held:
            live = self._found(scope, turn_id, held)
            return self._follower(live, after, token, held.pop_all())

    def stop(self, scope: Scope, turn_id: str, token: str | None = None) -> Follower:
        """Have it end soon, wherever it is played, and follow it until it has. That takes no seat: whoever
        has none left must still be able to stop.
        """
        with ExitStack() as held:
            live = self._found(scope, turn_id, held)
            if not self.running.stop(turn_id):
                self.tellings.ask_to_stop(scope, turn_id)
            return self._follower(live, 0, token, held.pop_all())

    def _seated(self, scope: Scope) -> ExitStack:
        held = ExitStack()
        held.callback(self.seats.take(scope.user_id).release)
        return held

    def _found(self, scope: Scope, turn_id: str, held: ExitStack) -> Live:
        """Whether it is the scope's own is asked every time."""
        told = self.tellings.look(scope, turn_id)
        if told.turn.status != "running":
            return Live.ended(scope, told)
        here = self.running.live(turn_id)
        if here is not None:
            return here
        # It is played elsewhere, or it has just ended: the journal finds out which.
        mirror = self.mirrors.follow(scope, turn_id)
        held.callback(self.mirrors.leave, mirror)
        self.journal.wake()
        return mirror

    def _follower(self, live: Live, after: int, token: str | None, held: ExitStack) -> Follower:
        follower = Follower(live, after, token, held)
        held.callback(self.journal.unwatch, weakref.ref(follower))
        self.journal.watch(follower)
        return follower
