"""The jobs of the heartbeat, one class each. ``run`` tells whether there will be more to do in a moment."""

from __future__ import annotations

import logging
import time

from agentapp.errors import StatementTimeout, StorageUnavailable
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import Binder, Scope
from agentapp.logs import described
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.draining import Draining
from agentapp.turns.ends import Settlement, TurnEnds
from agentapp.turns.feed import Subscriptions
from agentapp.turns.leases import Leases
from agentapp.turns.live_bus import LiveBus
from agentapp.turns.local import LocalTurn, LocalTurns
from agentapp.turns.remote import RemoteTurns
from agentapp.turns.stores import LiveTurnStore, LoginStore, SearchIndex, TurnStore
from agentapp.turns.unstored import UnstoredEnds

RENEWALS_PER_LEASE = 4
# How often events are stored while the live bus carries them. What was said since is lost, and costs nobody,
# if the worker is killed.
SECONDS_WITH_BUS = 1.0
STORING_SECONDS = 2.0  # in one beat, of what waited for the database

log = logging.getLogger(__name__)


class EndDisplacedStreams:
    """The first of the jobs: it needs no database, so it runs even while that is away."""

    name = "end streams that give way to newer ones"

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def run(self, now: float) -> bool:
        self._subscriptions.end_displaced()
        return len(self._subscriptions) > 0


class EndTurnsOfEndingWorker:
    name = "end the turns of a worker that ends"

    def __init__(self, draining: Draining) -> None:
        self._draining = draining

    def run(self, now: float) -> bool:
        self._draining.interrupt_if_due(now)
        return self._draining.has_begun


class StoreUnstoredEnds:
    """Never raises because the database is away: if it is, the next job says so."""

    name = "store ends of turns that the database could not take"

    def __init__(self, unstored: UnstoredEnds, binder: Binder) -> None:
        self._unstored, self._binder = unstored, binder

    def run(self, now: float) -> bool:
        """The other jobs do not wait for long: what is left is stored in the next beat."""
        ends = time.monotonic() + STORING_SECONDS
        for settlement in self._unstored.all():
            if not self._store(settlement) or time.monotonic() > ends:
                break
        return len(self._unstored) > 0

    def end(self) -> None:
        """The last try of this worker."""
        for settlement in self._unstored.all():
            if not self._store(settlement):
                break
        if left := len(self._unstored):
            log.error("%d ends of turns are lost: the database was away until this worker ended", left)

    def _store(self, settlement: Settlement) -> bool:
        """Whether it makes sense to go on with the next one."""
        turn = settlement.turn
        with self._binder.bound(turn.scope):
            try:
                is_stored = settlement.store()
            except StatementTimeout:  # a lock on this chat; the others may be free
                self._unstored.put_last(turn.id)
                return True
            except StorageUnavailable:
                self._unstored.put_last(turn.id)
                return False
            except Exception as error:
                log.error("turn could not be saved: %s", described(error), extra={"turn_id": turn.id})
                self._unstored.give_up(turn)
            else:
                told = "turn is stored now" if is_stored else "turn was no longer running when it was stored"
                log.info(told, extra={"turn_id": turn.id, "turn_status": turn.result.status})
            self._unstored.remove(turn.id)
        return True


class RenewLeases:  # agentapp: shared ok - changed by its own thread alone
    """One statement for all turns that this worker plays, or whose end it has to store, in a thread of its
    own: however long the other jobs take, and however many turns wait for the database, the leases are
    renewed.

    A turn of this worker that is neither is not among them.
    """

    name = "renew leases"

    def __init__(
        self, live: LiveTurnStore, local: LocalTurns, unstored: UnstoredEnds, leases: Leases
    ) -> None:
        self._live, self._local, self._unstored, self._leases = live, local, unstored, leases
        self._renewed = 0.0

    def run(self, now: float) -> bool:
        # In this order: a turn is among the second ones before it leaves the first ones.
        turns = {each.turn.id for each in self._local.all()}
        turns.update(self._unstored.turn_ids())
        if not turns:
            return False
        lease = self._leases.current()
        if now - self._renewed >= lease.length.total_seconds() / RENEWALS_PER_LEASE:
            self._live.renew(turns, lease)
            self._renewed = now
        return True


class WriteEvents:  # agentapp: shared ok - changed by the heartbeat's thread alone
    """One transaction for all turns of this worker, however many there are. While the live bus is up, readers
    and requests to stop do not wait for it, and there are fewer of them.
    """

    name = "store new events, find requests to stop"

    def __init__(self, live: LiveTurnStore, local: LocalTurns, leases: Leases, bus: LiveBus) -> None:
        self._live, self._local, self._leases, self._bus = live, local, leases, bus
        self._written_at = float("-inf")

    def run(self, now: float) -> bool:
        turns = self._local.all()
        if not turns:
            return False
        if self._may_wait(turns, now):
            return True
        self._write(turns)
        self._written_at = now
        return True

    def _may_wait(self, turns: list[LocalTurn], now: float) -> bool:
        just_written = now - self._written_at < SECONDS_WITH_BUS
        return just_written and self._bus.is_up and not any(each.has_new_call for each in turns)

    def _write(self, turns: list[LocalTurn]) -> None:
        worker = self._leases.current().worker
        new = [(each, events) for each in turns if (events := each.unwritten())]
        if not new:
            self._local.halt_as_stored(turns, self._live.stop_requests(worker))
            return
        stored = self._live.write([events for _, events in new], worker)
        for each, events in new:
            if each.turn.id in stored:
                each.has_written(events)
        self._local.halt_as_stored(turns, stored)


class GiveUpLostTurns:  # agentapp: shared ok - changed by the heartbeat's thread alone
    """No other worker of this machine interrupts a turn while the process of this one lives. So this one
    gives up those of its turns that nobody plays and whose end does not wait to be stored: something went
    wrong with them.

    Between its row and its thread a turn has a moment in which nobody plays it. That moment is long if the
    worker is slow, but a lease is longer. Those that are known to be lost are given up at once.
    """

    name = "give up turns of this worker that nobody plays"

    def __init__(
        self, live: LiveTurnStore, local: LocalTurns, unstored: UnstoredEnds, leases: Leases
    ) -> None:
        self._live, self._local, self._unstored, self._leases = live, local, unstored, leases
        self._missed: dict[str, float] = {}  # the turns that nobody plays, and since when that is known

    def run(self, now: float) -> bool:
        lease, known = self._leases.current(), self._unstored.lost()
        stored = self._live.stop_requests(lease.worker)
        nobodys = stored.keys() - {each.turn.id for each in self._local.all()}
        nobodys -= set(self._unstored.turn_ids())
        self._missed = {turn_id: self._missed.get(turn_id, now) for turn_id in nobodys}
        longest = lease.length.total_seconds()
        lost = [
            turn_id for turn_id, since in self._missed.items() if turn_id in known or now - since >= longest
        ]
        if lost:
            self._live.give_up(lost, lease.worker)
        self._unstored.forget_lost(known)
        return False


class PlayDroppedTurns:
    name = "go on with turns that were left in the middle"

    def __init__(self, local: LocalTurns) -> None:
        self._local = local

    def run(self, now: float) -> bool:
        self._local.play_dropped()
        return False


class CountSucceededTurns:
    name = "tell the provider's breaker how many turns succeeded"

    def __init__(self, guardrails: Guardrails) -> None:
        self._guardrails = guardrails

    def run(self, now: float) -> bool:
        self._guardrails.count_succeeded()
        return False


class CountUncountedTurns:
    name = "count the turns that a killed worker has stored and not counted"

    def __init__(self, store: TurnStore, ends: TurnEnds) -> None:
        self._store, self._ends = store, ends

    def run(self, now: float) -> bool:
        uncounted = self._ends.uncounted
        for slot, end in uncounted.left().items():
            if self._store.has_ended(end.scope, end.turn_id, end.status, end.ended_at):
                self._ends.count(end)
                self._ends.count_failure(end)
            uncounted.clear(slot)
        return False


class AddToSearchIndex:
    name = "put new messages into the index of the search"

    def __init__(self, index: SearchIndex) -> None:
        self._index = index

    def run(self, now: float) -> bool:
        return self._index.add_waiting()


class FollowRemoteTurns:
    name = "follow turns of other workers"

    def __init__(self, remote: RemoteTurns) -> None:
        self._remote = remote

    def run(self, now: float) -> bool:
        return self._remote.refresh(now)


class EndStreamsOfEndedLogins:
    name = "end streams whose login has ended"

    def __init__(self, logins: LoginStore, subscriptions: Subscriptions) -> None:
        self._logins, self._subscriptions = logins, subscriptions

    def run(self, now: float) -> bool:
        opened = [(each, each.login) for each in self._subscriptions.all() if each.login is not None]
        if opened:
            valid = self._logins.signed_in({login for _, login in opened})
            for subscription, login in opened:
                if login not in valid:
                    subscription.cut(signed_out=True)
        return False


class InterruptAbandonedTurns:  # agentapp: shared ok - changed by the heartbeat's thread alone
    name = "interrupt turns that have lost their worker"

    def __init__(
        self, store: TurnStore, live: LiveTurnStore, ends: TurnEnds, leases: Leases, binder: Binder
    ) -> None:
        self._store, self._live, self._ends = store, live, ends
        self._leases, self._binder = leases, binder
        self._failing: set[str] = set()  # the chats whose turn could not be interrupted

    def run(self, now: float) -> bool:
        workers = self._live.workers()
        # Turns that were given up are of no worker.
        dead = {worker for worker in workers if not worker or self._leases.lives(worker) is False}
        abandoned = self._live.of_workers(dead) if dead else []
        if self._leases.are_trusted:
            living = {worker for worker in workers if self._leases.lives(worker)}
            abandoned += self._live.with_lapsed_lease(living, self._leases.latest_end)
        self._interrupt(abandoned)
        return False

    def _interrupt(self, chats: list[Scope]) -> None:
        """A chat that fails does not keep the others from it. Those that failed before come last: if the
        database takes too long over one, the beat must not wait for the next one too.
        """
        self._failing &= {scope.session_id for scope in chats}
        for scope in sorted(chats, key=lambda scope: scope.session_id in self._failing):
            try:
                with self._binder.bound(scope):
                    interrupt_abandoned(self._store, self._ends, scope, self._leases)
            except Exception as error:
                if scope.session_id not in self._failing:  # told once: it is tried again and again
                    failed = "a turn that has lost its worker could not be interrupted: %s"
                    log.error(failed, described(error), extra={"session_id": scope.session_id})
                self._failing.add(scope.session_id)
                if isinstance(error, StorageUnavailable):
                    return
