"""The parts that live as long as the process, how they start and end, and how a view gets at them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flask import Request, current_app, g, request

from agentapp.config import Settings
from agentapp.guardrails.new_chats import NewChats
from agentapp.guardrails.pages import PageSlots
from agentapp.guardrails.seats import Seats
from agentapp.guardrails.sign_in import SignIns
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.retention.erasing import AllChats, Eraser
from agentapp.storage.accounts import Accounts
from agentapp.storage.audit_tallies import AuditTallies
from agentapp.storage.branches import Branches
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.engines import pool_size
from agentapp.storage.logins import Logins, SeenLogins
from agentapp.storage.minute_counts import IsolationScore
from agentapp.storage.readiness import Readiness
from agentapp.storage.room import Room
from agentapp.storage.usage_days import OwnUsage
from agentapp.storage.vacuum import Vacuum
from agentapp.telemetry.live import OpenRequests
from agentapp.telemetry.measurements import Measurements
from agentapp.turns.heartbeat import Heartbeat
from agentapp.turns.service import TurnService
from agentapp.web.admin_stores import AdminStores

if TYPE_CHECKING:
    from agentapp.storage.redis_client import Redis

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What `create_app` puts into ``app.extensions["agentapp"]``.

    A server calls ``start`` once in each worker. To end a worker it calls ``drain`` until that returns True,
    and then ``close``.
    """

    settings: Settings
    binder: ThreadBinder
    db: Database
    readiness: Readiness
    redis: Redis | None
    room: Room
    accounts: Accounts
    logins: Logins
    seen_logins: SeenLogins
    own_usage: OwnUsage
    sign_ins: SignIns
    chats: Chats
    branches: Branches
    new_chats: NewChats
    seats: Seats
    pages: PageSlots
    turns: TurnService
    telemetry: Measurements
    open_requests: OpenRequests
    isolation: IsolationScore
    breakers: CellStore
    audit_tallies: AuditTallies
    admin: AdminStores
    all_chats: AllChats
    eraser: Eraser
    vacuum: Vacuum
    cleaning: Heartbeat

    @property
    def demo(self) -> bool:
        return self.settings.provider == "demo"

    def start(
        self,
        threads: int | None = None,
        seats: tuple[mmap, int] | None = None,
        write_token: tuple[int, int] | None = None,
        metrics: Path | None = None,
    ) -> None:
        """Call it in each worker, after the fork. ``threads`` is how many the worker really has. ``seats`` is
        the memory that it shares with the other workers, and its row there, ``write_token`` is a pipe of
        theirs, and ``metrics`` the directory of their metrics.
        """
        if metrics is not None and seats is not None:
            self.telemetry.metrics.join(metrics, seats[1])
            self.turns.kit.uncounted.join(metrics, seats[1])
        if seats is not None and not self.seats.join(*seats):
            log.warning("this worker counts streams and pages by itself: it cannot use the shared memory")
        if write_token is not None:
            self.db.share_writing(write_token)
        self.db.schema.watch()
        self.turns.kit.traces.start()
        if self.redis is not None:
            self.redis.start()
        threads = threads or self.settings.threads
        self.turns.start(threads, self.settings.threads_reserved)
        self.cleaning.wake()

    def drain(self, grace: float) -> bool:
        """The worker is to end. Let its turns go on for most of ``grace`` seconds, then interrupt them.

        Returns at once, so that it may be called in a signal handler: True if all turns have ended or
        the time is over. Call it again until then; another call can only shorten the time.
        """
        return self.turns.drain(grace)

    def live(self) -> Mapping[str, float]:
        """How many of what there are in this worker now."""
        turns, slots = self.turns, self.turns.slots
        return {
            "scopes": len(self.open_requests),
            "agents": len(turns.kit.live_agents),
            "turns": len(turns.local.all()),
            "streams": len(turns.subscriptions),
            "stream_slots_taken": slots.taken(),
            "stream_slots": slots.total,
            "threads_most": slots.total + self.settings.threads_reserved,
            "db_connections": self.db.connections_in_use(),
            "db_pool": pool_size(self.db.engine),
            "heartbeat_lag": max(thread.lag for thread in turns.heartbeat.threads),
        }

    def close(self) -> None:
        """End the background threads, which store what they have left, and give the connections back."""
        self.cleaning.close()
        self.turns.close()
        self.turns.kit.traces.close()
        self.readiness.close()
        if self.redis is not None:
            self.redis.close()
        self.db.close()


def parts() -> Parts:
    return cast(Parts, current_app.extensions["agentapp"])


def now() -> float:
    """Seconds since 1970, by the database's clock: times that are shown are compared with stored ones."""
    return parts().db.clock.now()


def utc_now() -> datetime:
    return parts().db.clock.utc_now()


def this_request() -> Request:
    """The request itself. Each look at something of `flask.request` finds out anew which request it is."""
    return cast(Request, request._get_current_object())  # type: ignore[attr-defined]


def request_id() -> str:
    """What a person can quote when something went wrong, because it is in the log too."""
    scope: RequestScope | None = g.get("scope")
    return scope.request_id if scope is not None else "-"
