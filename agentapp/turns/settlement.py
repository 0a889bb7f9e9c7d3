"""How the end of a turn gets into the database: once, however often that is tried and whoever else tries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentapp.events import Event, TurnResult, TurnStarted, Usage
from agentapp.guardrails.admission import Reservation
from agentapp.guardrails.cell import Key
from agentapp.isolation import Scope
from agentapp.turns.ends import Ending, TurnEnds
from agentapp.turns.stores import ChatTransaction, TurnStore
from agentapp.turns.values import Spent, difference


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """All that is to be stored of a turn that is over here."""

    scope: Scope
    id: str
    reservation: Reservation
    result: TurnResult
    events: tuple[Event, ...]
    violated: bool = False  # isolation, so that it failed

    @classmethod
    def never_played(cls, scope: Scope, turn_id: str, reservation: Reservation, text: str) -> EndedTurn:
        """The connection broke off while it was begun: it may be stored, though whoever sent the message was
        told that it is not. The model was not asked, so nothing is charged.
        """
        started = TurnStarted(turn_id, scope.session_id, text)
        return cls(scope, turn_id, reservation, TurnResult("interrupted"), (started,))


class Settlement:
    """Of one turn. It may be tried again when a try has failed, also much later; by one thread at a time."""

    def __init__(self, store: TurnStore, ends: TurnEnds, turn: EndedTurn) -> None:
        self.turn = turn
        self._store, self._ends = store, ends
        self._was_tried = False
        self._ending: Ending | None = None

    def store(self) -> bool:
        """Store the result and settle with the guardrails. False if somebody else has ended the turn, or its
        chat is deleted.

        If it was tried before, that commit may have worked although the connection broke off. Whoever else
        ends a turn leaves what was charged for it; so if nothing is left, that commit has worked.
        """
        again, self._was_tried = self._was_tried, True
        scope, turn_id, result = self.turn.scope, self.turn.id, self.turn.result
        with self._store.chat(scope) as chat:
            if not chat.end_turn(turn_id, result, self.turn.events):
                if (charged := chat.take_charge(turn_id)) is None:
                    is_stored = again and chat.ended_turn(turn_id) == (result.status, result.usage)
                    if is_stored and self._ending is not None:
                        chat.when_over(self._ending.over)
                    return is_stored
                self._charge_the_rest(chat, charged)
                return self._store_after_all(chat)
            if result.reply:
                chat.add_message(turn_id, "assistant", result.reply, result.rendered)
            self._ending = self._ends.settle(
                chat, scope, turn_id, self.turn.reservation, result, violated=self.turn.violated
            )
            chat.remove_live_turn(turn_id)
            return True

    def _store_after_all(self, chat: ChatTransaction) -> bool:
        """Somebody took this worker for dead, but the whole answer is here: it takes the place of what was
        kept of it, unless the chat has gone on without it.
        """
        turn_id, result = self.turn.id, self.turn.result
        if result.status != "completed" or not chat.complete_interrupted(turn_id, result, self.turn.events):
            return False
        if result.reply:
            chat.add_message(turn_id, "assistant", result.reply, result.rendered)
        return True

    def _charge_the_rest(self, chat: ChatTransaction, charged: Spent) -> None:
        """What it spent was spent in any case. Whoever ended it has charged what was stored until then; that
        was more than the truth if it was estimated too high.
        """
        scope, reservation, result = self.turn.scope, self.turn.reservation, self.turn.result
        tokens = result.usage.total_tokens - charged.usage.total_tokens
        microusd = result.charged_microusd - charged.charged_microusd
        rest = replace(result, usage=Usage(tokens), charged_microusd=microusd)
        self._ends.charge(chat, scope, rest, reservation)
        if chat.title is None:  # the chat is deleted, and its cell was deleted with it
            chat.cells.remove(Key("session", scope.session_id))
        elif tokens or microusd:
            chat.correct_usage(self.turn.id, result)
        chat.correct_usage_day(reservation, difference(result.parts, charged.parts))
