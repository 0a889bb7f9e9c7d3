"""The ends of turns: settled with the guardrails, and counted exactly once, when they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.events import TurnResult
from agentapp.guardrails.admission import Reservation
from agentapp.guardrails.changes import BreakerChange, Settled
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import Scope
from agentapp.telemetry import Telemetry
from agentapp.turns.stores import ChatTransaction
from agentapp.turns.uncounted import TurnEnd, UncountedTurns


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
