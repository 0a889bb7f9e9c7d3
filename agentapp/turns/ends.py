"""The ends of turns: stored, settled with the guardrails and counted exactly once, however often that is
tried and whoever else tries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentapp.events import Event, TurnResult, TurnStarted, Usage
from agentapp.guardrails.admission import Reservation
from agentapp.guardrails.cell import Key
from agentapp.guardrails.changes import BreakerChange, Settled
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import Scope
from agentapp.telemetry import Telemetry
from agentapp.turns.stores import ChatTransaction, TurnStore
from agentapp.turns.uncounted import TurnEnd, UncountedTurns
from agentapp.turns.values import Spent, difference


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """For whoever ends a turn: the worker that plays it, or another one in its place."""

    guardrails: Guardrails
    telemetry: Telemetry
    uncounted: UncountedTurns

    def settle(
        self,
        chat: ChatTransaction,
        scope: Scope,
        turn_id: str,
        reservation: Reservation | None,
        result: TurnResult,
        *,
        violated: bool = False,
    ) -> Ending:
        """As part of the transaction that stores how the turn ended; without a reservation there is nothing
        to give back. ``violated`` says that the turn failed because isolation did.
        """
        settled = Settled()
        if reservation is not None:
            settled = self.guardrails.settle(chat.cells, scope, reservation, result, chat.other_running_turns)
            chat.add_usage(reservation, result)
        end = TurnEnd(scope, turn_id, result.status, settled.contained and not violated, chat.now)
        ending = Ending(self, end, settled, self.uncounted.note(end))
        chat.when_over(ending.over)
        return ending

    def charge(
        self, chat: ChatTransaction, scope: Scope, result: TurnResult, reservation: Reservation
    ) -> None:
        """What a turn has spent after somebody else had ended it."""
        found = self.guardrails.charge(chat.cells, scope, result, reservation)

        def over(is_stored: bool) -> None:
            for budget in found if is_stored else ():
                budget.tell(self.telemetry)

        chat.when_over(over)

    def count(self, end: TurnEnd) -> None:
        self.telemetry.count("turns_total", tenant_id=end.scope.tenant_id, status=end.status)

    def count_failure(self, end: TurnEnd) -> None:
        """If it is one."""
        if end.status == "failed":
            self.telemetry.count("failures_total", tenant_id=end.scope.tenant_id)
            if end.contained:
                self.telemetry.count("failures_contained_total", tenant_id=end.scope.tenant_id)

    def report(self, change: BreakerChange) -> None:
        if not change.opened:
            return
        self.telemetry.count("breaker_trips_total", scope=change.key.scope)
        if change.key.scope == "provider":
            detail = f"{change.failures} users failed: nobody is let through for {change.cooldown:.0f} s"
            self.telemetry.alert("provider-breaker-open", detail, subject=change.subject)


@dataclass(slots=True)
class Ending:
    """The end of one turn, which is counted once it is known that its transaction is committed."""

    ends: TurnEnds
    end: TurnEnd
    settled: Settled
    slot: int | None
    is_counted: bool = False

    def over(self, is_stored: bool) -> None:
        """May be called again: that a commit has worked may be known only later."""
        counts = is_stored and not self.is_counted
        if counts:
            self.is_counted = True
            self.ends.count(self.end)
        # Nothing comes between the two: a worker that is killed here leaves the turn to be counted twice.
        slot, self.slot = self.slot, None
        self.ends.uncounted.clear(slot)
        if counts:
            self.ends.count_failure(self.end)
            for change in self.settled.changes:
                self.ends.report(change)
            for budget in self.settled.nearly_used:
                budget.tell(self.ends.telemetry)


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
