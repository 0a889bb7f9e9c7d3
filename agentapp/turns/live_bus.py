"""The live bus: how events and requests to stop go from worker to worker in milliseconds.

Whatever it carries is in the database too, or comes into it. While it is down, the heartbeat does the same at
every beat.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from agentapp.errors import ForeignEvents, IsolationViolated, StorageUnavailable
from agentapp.isolation import Binder, RequestScope, Scope, new_id
from agentapp.logs import described
from agentapp.turns.feed import Feed
from agentapp.turns.leases import Leases
from agentapp.turns.local import LocalTurns
from agentapp.turns.mailboxes import Follow, Mailboxes, Message, Owner, Piece, Stop, packed, unpacked
from agentapp.turns.passed_on import PassedOn
from agentapp.turns.remote import ASK_SECONDS, RemoteTurns
from agentapp.turns.stores import LiveTurnStore

TAKE_SECONDS = 1.0  # how long one look into the mailbox waits for a letter
RETRY_SECONDS = 1.0  # while the mailboxes are away
# What turns say within this time goes out together. After sending took long, it is so many times as long.
TOGETHER_SECONDS = 0.01
REST = 4

log = logging.getLogger(__name__)


class LiveBus(Protocol):
    @property
    def is_up(self) -> bool:
        """Whether what others ask of this worker arrives at once. If not, the heartbeat looks for it."""

    def wake(self) -> None:
        """Begin, if it has not begun in this process."""

    def follow(self, scope: Scope, feed: Feed) -> None:
        """Somebody reads this turn here, and another worker plays it."""

    def stop(self, worker: str, scope: Scope, turn_id: str) -> None:
        """Have that worker stop the turn. That it should is stored already."""

    def close(self) -> None: ...


class NoLiveBus:
    """The heartbeat does it all."""

    is_up = False

    def wake(self) -> None: ...

    def follow(self, scope: Scope, feed: Feed) -> None: ...

    def stop(self, worker: str, scope: Scope, turn_id: str) -> None: ...

    def close(self) -> None: ...


class MailBus:  # agentapp: shared ok - behind its lock, or changed by one of its two threads alone
    """A `LiveBus` of mailboxes. Two threads, however many turns there are: one sends for all of them, one
    reads this worker's mailbox. Nobody else ever waits for the mailboxes.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        live: LiveTurnStore,
        local: LocalTurns,
        remote: RemoteTurns,
        leases: Leases,
        binder: Binder,
        report: Callable[[IsolationViolated], None],
    ) -> None:
        self._mailboxes, self._live, self._local, self._remote = mailboxes, live, local, remote
        self._leases, self._binder, self._report = leases, binder, report
        self._lock = threading.Lock()
        self._to_send: list[tuple[str, Message]] = []
        self._wake, self._closing = threading.Event(), threading.Event()
        self._passed_on = PassedOn(self._wake.set)
        self._threads: tuple[threading.Thread, ...] = ()
        self._pid = 0
        self._sends, self._reads = True, False
        self._asks_at = 0.0

    @property
    def is_up(self) -> bool:
        works = self._sends and self._reads and not self._closing.is_set()
        return works and self._pid == os.getpid()

    def wake(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            self._threads = tuple(
                threading.Thread(target=run, name=f"agentapp-bus-{name}", daemon=True)
                for name, run in (("sends", self._send_all), ("reads", self._read_all))
            )
            for thread in self._threads:
                thread.start()

    def follow(self, scope: Scope, feed: Feed) -> None:
        worker = self._live.worker_of(scope, feed.turn_id)
        if worker:
            self._remote.note_worker(feed, worker)
            self._post(worker, self._question(feed))

    def stop(self, worker: str, scope: Scope, turn_id: str) -> None:
        self._post(worker, Stop(turn_id, Owner.of(scope)))

    def close(self) -> None:
        """What is to be sent is sent first: others wait for the ends of turns."""
        self._closing.set()
        self._wake.set()
        for thread in self._threads if self._pid == os.getpid() else ():
            thread.join()

    def _post(self, worker: str, message: Message) -> None:
        with self._lock:
            self._to_send.append((worker, message))
        self.wake()
        self._wake.set()

    def _question(self, feed: Feed) -> Follow:
        return Follow(feed.turn_id, Owner.of(feed.scope), self._leases.worker(), feed.length)

    def _send_all(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(ASK_SECONDS)
            began = time.monotonic()
            self._send_new()
            took = time.monotonic() - began
            self._closing.wait(max(TOGETHER_SECONDS, REST * took) if self._sends else RETRY_SECONDS)
        if self._sends:
            self._send_new()
            self._put([self._empty_letter()])  # so that the other thread does not wait

    def _send_new(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        with self._lock:
            messages, self._to_send = self._to_send, []
        if now >= self._asks_at:
            self._asks_at = now + ASK_SECONDS
            messages += [(worker, self._question(feed)) for worker, feed in self._remote.followed()]
        pieces = self._passed_on.pieces(now)
        messages += [(each.reader.worker, each.piece) for each in pieces]
        if messages or not self._sends:
            # While they are away, a letter to itself shows whether the mailboxes are back.
            self._sends = self._put(_letters(messages) or [self._empty_letter()])
            if self._sends:
                self._passed_on.has_sent(pieces)

    def _put(self, letters: Sequence[tuple[str, str]]) -> bool:
        try:
            self._mailboxes.put(letters)
        except Exception as error:
            self._note_failure(error)
            return False
        return True

    def _empty_letter(self) -> tuple[str, str]:
        """To itself."""
        return self._leases.worker(), packed(())

    def _read_all(self) -> None:
        worker = self._leases.worker()
        while not self._closing.is_set():
            try:
                letters = self._mailboxes.take(worker, TAKE_SECONDS)
            except Exception as error:
                self._note_failure(error)
                self._reads = False
                self._closing.wait(RETRY_SECONDS)
                continue
            if not self._reads:
                self._reads, self._asks_at = True, 0.0
                self._wake.set()
            if letters:
                self._read(letters)

    def _note_failure(self, error: Exception) -> None:
        """Whoever reads a turn of another worker here is told by the heartbeat from now on."""
        if not isinstance(error, StorageUnavailable):  # that the mailboxes are away is in the log already
            log.error("the live bus fails: %s", described(error))
        self._remote.expect_nothing()

    def _read(self, letters: Sequence[str]) -> None:
        """What ends turns here comes last: for that the database is asked, and it may be slow."""
        over = []
        for letter in letters:
            try:
                for message in unpacked(letter):
                    if isinstance(message, Piece) and message.is_over:
                        over.append(message.turn_id)
                    self._heed(message)
            except ValueError as error:
                log.error("a letter of another worker cannot be read: %s", described(error))
        if over:
            with self._binder.bound(RequestScope(request_id=f"bus-{new_id()}")):
                try:
                    self._remote.finish(over)
                except Exception as error:  # the heartbeat does it, sooner or later
                    log.warning("the end of a turn is told later: %s", described(error))

    def _heed(self, message: Message) -> None:
        match message:
            case Follow():
                self._pass_on(message)
            case Stop():
                if self._local_feed(message) is not None:
                    self._local.stop(message.turn_id)
            case Piece():
                feed = self._remote.receive(message, time.monotonic())
                if feed is not None:  # something before it is missing
                    worker = self._remote.worker_of(feed)
                    if worker is not None:
                        self._post(worker, self._question(feed))

    def _pass_on(self, message: Follow) -> None:
        feed = self._local_feed(message)
        if feed is not None:
            self._passed_on.follow(feed, message.reader, message.after, time.monotonic())
            self._wake.set()
        elif self._local.feed(message.turn_id) is None:
            # It has ended; or it begins just now, and then it will be asked for again.
            self._post(message.reader, Piece(message.turn_id, message.owner, 1, (), is_over=True))

    def _local_feed(self, message: Follow | Stop) -> Feed | None:
        """The feed of a turn that is played here, if it belongs to whom the message says."""
        feed = self._local.feed(message.turn_id)
        if feed is None or Owner.of(feed.scope) == message.owner:
            return feed
        self._report(ForeignEvents(feed.scope, f"a request about turn {message.turn_id}"))
        return None


def _letters(messages: Sequence[tuple[str, Message]]) -> list[tuple[str, str]]:
    """One for each worker."""
    of_worker: defaultdict[str, list[Message]] = defaultdict(list)
    for worker, message in messages:
        of_worker[worker].append(message)
    return [(worker, packed(each)) for worker, each in of_worker.items()]
