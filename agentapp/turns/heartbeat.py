"""The journal: one thread a worker, which writes down what its turns say, keeps them alive, hears of stops,
follows other workers' turns, and clears up after workers that died.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from agentapp.errors import StorageUnavailable
from agentapp.isolation import Binder, RequestScope, Scope
from agentapp.storage.accounts import Accounts
from agentapp.storage.live_turns import JournalStore
from agentapp.storage.turns import Turns
from agentapp.storage.values import new_id
from agentapp.turns.feed import Follower
from agentapp.turns.leases import Leases
from agentapp.turns.local import Played, Running
from agentapp.turns.remote import Mirrors

TICK = 0.25  # a stop from another worker is heard within that time
CHORES = 2.0  # how often logins are looked at, and dead workers' turns
RENEWALS = 4  # how often a lease is renewed in its own length
MARGIN = 5.0  # seconds in which interrupted turns are written down and told

log = logging.getLogger(__name__)


class Journal:  # agentapp: shared ok - changed by its own thread alone, and once before that starts
    def __init__(
        self,
        store: JournalStore,
        turns: Turns,
        accounts: Accounts,
        running: Running,
        mirrors: Mirrors,
        leases: Leases,
        binder: Binder,
    ) -> None:
        self._store, self._turns, self._accounts = store, turns, accounts
        self._running, self._mirrors = running, mirrors
        self._leases, self._binder = leases, binder
        self._lock = threading.Lock()
        self._followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._news, self._closing = threading.Event(), threading.Event()
        self._renewed = self._chores_done = self._trusted = 0.0
        self._is_ending: Callable[[], bool] = lambda: False
        self._grace = 0.0
        self._ends: float | None = None

    def wake(self) -> None:
        """There is something to do: see that the thread runs, also after a fork, and does not sleep."""
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._closing.clear()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="agentapp-journal", daemon=True)
                self._thread.start()
        self._news.set()

    def close(self) -> None:
        """End the thread. Turns that still run are then nobody's, until their lease is over."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._closing.set()
        self._news.set()
        if thread is not None and self._pid == os.getpid():
            thread.join()

    def watch(self, follower: Follower) -> None:
        """End it when its login ends."""
        with self._lock:
            self._followers.add(follower)

    def unwatch(self, follower: weakref.ref[Follower]) -> None:
        with self._lock:
            if (found := follower()) is not None:
                self._followers.discard(found)

    def end_with(self, is_ending: Callable[[], bool], grace: float) -> None:
        """When this worker is to end, let its turns go on for most of that time, then interrupt them."""
        self._is_ending, self._grace = is_ending, grace

    def is_over(self) -> bool:
        """Whether an ending worker need not wait any more: all its turns have ended, or their time has."""
        return self._running.wait(0) or (self._ends is not None and time.monotonic() > self._ends)

    def _run(self) -> None:
        is_away = False
        while not self._closing.is_set():
            self._news.clear()
            busy = False
            try:
                busy = self._tick()
                is_away = False
            except StorageUnavailable as error:
                self._distrust()
                if not is_away:  # once is enough: it will try again and again
                    log.warning("journal: %s", str(error.__cause__ or error).partition("\n")[0])
                is_away = True
            except Exception:
                self._distrust()
                log.exception("journal: unexpected error")
            if busy:
                self._closing.wait(TICK)
            else:
                self._news.wait(CHORES)

    def _tick(self) -> bool:
        """Everything there is to do now. Whether there will be more in a moment."""
        now = time.monotonic()
        played = self._running.all()
        ending = self._is_ending()
        if ending:
            self._hurry(now)
        dead: list[Scope] = []
        with self._binder.bound(RequestScope(request_id=f"journal-{new_id()}")):
            if played:
                self._write(played, now)
            followed = self._mirrors.refresh()
            if now - self._chores_done >= CHORES:
                self._chores_done = now
                self._check_logins()
                dead = self._dead(now)
        for scope in dead:
            with self._binder.bound(scope):
                self._turns.end_dead(scope, self._leases.current())
        return bool(played) or followed or ending

    def _write(self, played: list[Played], now: float) -> None:
        lease = self._leases.current()
        due = now - self._renewed >= lease.length.total_seconds() / RENEWALS
        entries = [(each, entry) for each in played if (entry := each.unwritten())]
        if not entries and not due:
            self._running.heed(played, self._store.alive(lease.worker))
            return
        alive = self._store.write([entry for _, entry in entries], lease, renew=due)
        for each, entry in entries:
            each.written += len(entry.events)
        if due:
            self._renewed = now
        self._running.heed(played, alive)

    def _check_logins(self) -> None:
        with self._lock:
            followers = [(each, each.token) for each in self._followers if each.token is not None]
        if not followers:
            return
        live = self._accounts.signed_in({token for _, token in followers})
        for follower, token in followers:
            if token not in live:
                follower.cut(signed_out=True)

    def _dead(self, now: float) -> list[Scope]:
        """Where a turn has lost its worker."""
        if gone := {worker for worker in self._store.workers() if self._leases.is_gone(worker)}:
            self._store.end_leases(gone)
        return self._store.abandoned(self._leases.current()) if gone or now >= self._trusted else []

    def _distrust(self) -> None:
        """After the database was away every lease looks as if it were over. Others' are judged only by one
        who could have renewed its own all the while.
        """
        self._trusted = time.monotonic() + self._leases.current().length.total_seconds()

    def _hurry(self, now: float) -> None:
        """This worker is to end: when its turns have had their time, they are interrupted and told so."""
        if self._ends is None:
            self._ends = now + self._grace
        if now >= self._ends - min(MARGIN, self._grace / 2):
            self._running.interrupt()
            with self._lock:
                followers = list(self._followers)
            for follower in followers:
                if self._mirrors.has(follower.live):
                    follower.cut(signed_out=False)
