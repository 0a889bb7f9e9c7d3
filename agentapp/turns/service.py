"""The service: everything a request, a worker or an operator may ask of turns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from agentapp.errors import ForeignEvents, TurnInProgress
from agentapp.guardrails.guard import Standing
from agentapp.guardrails.streams import StreamSlot, StreamSlots
from agentapp.isolation import Binder, Scope
from agentapp.turns.abandoned import delete_chat
from agentapp.turns.draining import Draining
from agentapp.turns.feed import Feed, Subscription, Subscriptions
from agentapp.turns.heartbeat import IDLE_SECONDS, Heartbeat, Heartbeats, ScheduledJob
from agentapp.turns.jobs import (
    AddToSearchIndex,
    CountSucceededTurns,
    CountUncountedTurns,
    EndDisplacedStreams,
    EndStreamsOfEndedLogins,
    EndTurnsOfEndingWorker,
    FollowRemoteTurns,
    GiveUpLostTurns,
    InterruptAbandonedTurns,
    PlayDroppedTurns,
    RenewLeases,
    StoreUnstoredEnds,
    WriteEvents,
)
from agentapp.turns.kit import TurnKit
from agentapp.turns.live_bus import LiveBus, MailBus, NoLiveBus
from agentapp.turns.local import LocalTurns
from agentapp.turns.mailboxes import Mailboxes
from agentapp.turns.played import PlayedSubscription
from agentapp.turns.remote import RemoteTurns
from agentapp.turns.stores import LiveTurnStore, LoginStore, SearchIndex
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage, RepeatedMessage

COUNT_SECONDS = 1.0  # far less than the window that the provider's breaker looks at


@dataclass(frozen=True, slots=True)
class TurnService:
    """Lives as long as the process. `make_turn_service` puts one together."""

    kit: TurnKit
    live: LiveTurnStore
    slots: StreamSlots
    local: LocalTurns
    remote: RemoteTurns
    subscriptions: Subscriptions
    draining: Draining
    binder: Binder
    bus: LiveBus
    heartbeat: Heartbeats = field(repr=False)

    def send(
        self, scope: Scope, message: NewMessage, login: str | None = None, *, plays: bool = False
    ) -> Subscription:
        """Begin a turn, or refuse with nothing changed. It goes on to its end whether or not anybody reads
        it: on a thread of its own or, if the caller ``plays``, on the thread that reads the subscription and
        closes it (see `PlayedSubscription`).

        The same message with the same key once more is the same turn.
        """
        with ExitStack() as held:
            slot = self._hold(self.slots.take_for_turn(scope.user_id, scope.tenant_id), held)
            begun = self._begin(scope, message)
            if isinstance(begun, RepeatedMessage):
                feed = self._find_feed(scope, begun.turn_id, held)
                return self._subscribe(scope, feed, 0, login, held.pop_all(), slot)
            self.heartbeat.wake()
            self.bus.wake()
            if not plays:
                return self._subscribe(scope, self.local.play(begun), 0, login, held.pop_all(), slot)
            kept = held.pop_all()
            played = PlayedSubscription(begun, self.local, self.binder, login, kept, slot)
            return self._listed(scope, played, kept)

    def _begin(self, scope: Scope, message: NewMessage) -> Turn | RepeatedMessage:
        try:
            return Turn.begin(self.kit, scope, message)
        except TurnInProgress:
            # The database is there, so an end that waits for it need not wait any longer.
            if len(self.kit.unstored):
                self.heartbeat.wake()
            raise

    def follow(self, scope: Scope, turn_id: str, after: int = 0, login: str | None = None) -> Subscription:
        """The events of a turn after that number, whichever worker plays it."""
        with ExitStack() as held:
            slot = self._hold(self.slots.take_for_follower(scope.user_id, scope.tenant_id), held)
            feed = self._find_feed(scope, turn_id, held)
            return self._subscribe(scope, feed, after, login, held.pop_all(), slot)

    def stop(self, scope: Scope, turn_id: str, login: str | None = None) -> Subscription:
        """Have a turn end soon, whichever worker plays it, and follow it until it has. That takes no stream
        slot: a user who has none left must still be able to stop.
        """
        with ExitStack() as held:
            feed = self._find_feed(scope, turn_id, held)
            if not self.local.stop(turn_id):
                self.hurry_stop(scope, turn_id, self.live.ask_to_stop(scope, turn_id))
            return self._subscribe(scope, feed, 0, login, held.pop_all())

    def hurry_stop(self, scope: Scope, turn_id: str, worker: str | None) -> None:
        """Tell the worker that plays the turn, if there is one, that it is to end. It will find that out by
        itself too: it is stored already.
        """
        if worker:
            self.bus.stop(worker, scope, turn_id)

    def standing(self, scope: Scope) -> Standing:
        """How the chat stands with its limits: what its next message would be refused for."""
        return self.kit.guardrails.standing(scope, self.kit.max_cost())

    def delete_chat(self, scope: Scope) -> None:
        """Delete the chat. What a turn under way has reserved is given back."""
        running = delete_chat(self.kit.store, self.kit.ends, scope)
        if running is not None:
            self.hurry_stop(scope, running.id, running.worker)

    def start(self, threads: int, reserved: int) -> None:
        """This worker has so many threads; streams never take the reserved ones. From now on the worker also
        clears up after workers that died, before the first request comes.
        """
        self.slots.resize(threads, reserved)
        self.heartbeat.wake()
        self.bus.wake()

    def drain(self, grace: float) -> bool:
        """Let the turns go on for most of so many seconds, then interrupt them. Whether all have ended, or
        the time is up. It returns at once: call it again to ask again.
        """
        self.draining.begin(grace)
        return self.draining.is_over

    def close(self) -> None:
        self.heartbeat.close()
        self.bus.close()

    def _hold(self, slot: StreamSlot, held: ExitStack) -> StreamSlot:
        held.callback(slot.release)
        if slot.displaced_others:  # Those of other workers are ended there, by the heartbeat.
            self.subscriptions.end_displaced()
        return slot

    def _find_feed(self, scope: Scope, turn_id: str, held: ExitStack) -> Feed:
        """Whether the turn is the scope's own is asked every time."""
        record = self.kit.store.find(scope, turn_id)
        if record.result.status != "running":
            return Feed.ended(scope, record)
        here = self.local.feed(turn_id)
        if here is not None:
            return self._own(scope, here)
        # Another worker plays it, or it has just ended: the heartbeat finds out which.
        feed = self.remote.subscribe(scope, turn_id)
        held.callback(self.remote.unsubscribe, feed)
        self.bus.follow(scope, feed)
        self.heartbeat.wake()
        return self._own(scope, feed)

    def _own(self, scope: Scope, feed: Feed) -> Feed:
        """The events that somebody is about to read are of the chat that was asked for."""
        self.kit.telemetry.check(tenant_id=scope.tenant_id)
        if feed.scope.of_same_chat(scope):
            return feed
        violated = ForeignEvents(scope, f"events of turn {feed.turn_id}")
        self.kit.report(violated)
        raise violated

    def _subscribe(
        self,
        scope: Scope,
        feed: Feed,
        after: int,
        login: str | None,
        held: ExitStack,
        slot: StreamSlot | None = None,
    ) -> Subscription:
        return self._listed(scope, Subscription(feed, after, login, held, slot), held)

    def _listed(self, scope: Scope, subscription: Subscription, held: ExitStack) -> Subscription:
        held.callback(self.subscriptions.remove, weakref.ref(subscription), scope.request_id)
        self.subscriptions.add(subscription, scope.request_id)
        return subscription


def make_turn_service(
    kit: TurnKit,
    live: LiveTurnStore,
    logins: LoginStore,
    search_index: SearchIndex,
    slots: StreamSlots,
    binder: Binder,
    more_jobs: Sequence[ScheduledJob] = (),
    first_jobs: Sequence[ScheduledJob] = (),
    mailboxes: Mailboxes | None = None,
) -> TurnService:
    """``more_jobs`` are jobs of other parts, which the heartbeat runs too, and ``first_jobs`` are those that
    it runs even if the others cannot. Through ``mailboxes`` workers tell each other at once what they find
    out at the next beat without.
    """
    local, remote, subscriptions = (
        LocalTurns(binder),
        RemoteTurns(kit.store, live, kit.report),
        Subscriptions(),
    )
    unstored = kit.unstored
    draining = Draining(local, remote, subscriptions, unstored)
    bus: LiveBus = NoLiveBus()
    if mailboxes is not None:
        bus = MailBus(mailboxes, live, local, remote, kit.leases, binder, kit.report)
    abandoned = InterruptAbandonedTurns(kit.store, live, kit.ends, kit.leases, binder)
    leases = kit.leases
    renewing = Heartbeat(
        "heartbeat-leases",
        (ScheduledJob(RenewLeases(live, local, unstored, leases)),),
        binder,
        kit.telemetry,
        on_failure=leases.distrust,
        on_lag=leases.note_lag,
    )
    everything_else = Heartbeat(
        "heartbeat",
        (
            *first_jobs,
            ScheduledJob(EndDisplacedStreams(subscriptions)),
            ScheduledJob(EndTurnsOfEndingWorker(draining)),
            ScheduledJob(StoreUnstoredEnds(unstored, binder)),
            ScheduledJob(WriteEvents(live, local, leases, bus)),
            ScheduledJob(PlayDroppedTurns(local)),
            ScheduledJob(FollowRemoteTurns(remote)),
            ScheduledJob(CountSucceededTurns(kit.guardrails), every=COUNT_SECONDS),
            ScheduledJob(EndStreamsOfEndedLogins(logins, subscriptions), every=IDLE_SECONDS),
            ScheduledJob(GiveUpLostTurns(live, local, unstored, leases), every=IDLE_SECONDS),
            ScheduledJob(abandoned, every=IDLE_SECONDS),
            ScheduledJob(CountUncountedTurns(kit.store, kit.ends), every=IDLE_SECONDS),
            *more_jobs,
            # Last: if the index is damaged, the jobs above run all the same.
            ScheduledJob(AddToSearchIndex(search_index), every=COUNT_SECONDS),
        ),
        binder,
        kit.telemetry,
        on_failure=leases.distrust,
        on_lag=leases.distrust_if_late,
    )
    heartbeat = Heartbeats((renewing, everything_else))
    return TurnService(kit, live, slots, local, remote, subscriptions, draining, binder, bus, heartbeat)
