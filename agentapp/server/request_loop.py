"""The worker's main loop: it reads requests, hands whole ones to threads, and waits for slow clients.

A thread gets a request only when all of it has come, and is free again as soon as the answer is written. So
however many clients send half a request, do not read their answer or do not hang up, none holds a thread.
"""

from __future__ import annotations

import errno
import math
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any

from agentapp.processors import Processors
from agentapp.server.connection import ClientGone, Connection
from agentapp.server.connections import Connections, Waits
from agentapp.server.deferred import Deferred
from agentapp.server.incoming_request import UserOf, nobody
from agentapp.server.lanes import Job, Lane, Lanes, is_sign_in, is_static, name_signed_in_with
from agentapp.server.limits import (
    HEAD_SECONDS,
    KEEPALIVE_SECONDS,
    SEND_SECONDS,
    STOPPING_KEEPALIVE_SECONDS,
    STOPPING_PROXY_KEEPALIVE_SECONDS,
    STRANGER_KEEPALIVE_SECONDS,
)
from agentapp.server.refused_lines import RefusedLines
from agentapp.server.unreadable import TooSlow
from agentapp.server.waiting import WaitingLoop

LOOP_SECONDS = 1.0
NOTIFY_SECONDS = 1.0  # how often gunicorn is told that the worker is alive
SWEEP_SECONDS = 0.5  # between two looks for connections whose time is over
# How long a worker whose threads are all taken leaves new connections to the other workers.
LEFT_TO_OTHERS_SECONDS = 0.02
ACCEPTED_AT_ONCE = 16
# A worker that has so many connections more than another leaves the next one to that worker, for a moment:
# otherwise whoever is quicker by a little would get all of them. If nobody took it, it takes some itself.
MOST_AHEAD = 2
LEFT_WHEN_AHEAD_SECONDS = 0.005
ACCEPTED_WHEN_FULL = 100
# While as many turns begin as may at once. If all workers are so slow to take more, they share what comes.
ACCEPTED_WHILE_TURNS_BEGIN = 24
MANY_AT_ONCE = 4  # in one round of the loop: then it is worth asking who of them has left already
STRANGERS_WAIT_SECONDS = 0.1  # at most, while there is always something else to do
NO_DESCRIPTORS_SECONDS = 0.1  # for which nothing is accepted if there is no room and nothing can make any
STREAMS_THAT_GIVE_WAY = 8
SEND_BUFFER_BYTES = 64 * 1024  # in the kernel: a client is slow if it does not take a third in SEND_SECONDS
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

TakeSlot = Callable[[str], tuple[Any, Any]]


class RequestLoop(WaitingLoop):
    """gunicorn's threaded worker with another main loop."""

    processors: Processors | None = None  # if its threads are to stay on one

    def init_process(self) -> None:
        self._connections = Connections()
        self._user_of: UserOf = nobody
        self._take_page_slot: TakeSlot = lambda user: (None, None)
        self._trusted_proxies = 0
        self._note_connections: Callable[[int], None] = lambda count: None
        self._fewest_connections: Callable[[], float] = lambda: math.inf
        self._has_left_some = False
        self._received = 0  # requests or parts of them, in this round of the loop
        self._answering = 0  # requests that a thread has, or that wait for one
        self._accept_at = self._sweep_at = self._strangers_at = self._accepts_from = self._notify_at = 0.0
        self._addresses: dict[Any, Any] = {}  # of the listeners
        self._refused_lines = RefusedLines()
        self.method_queue = Deferred()
        super().init_process()

    def get_thread_pool(self) -> Lanes:
        if self.processors is not None:
            self.processors.use_one()
        return Lanes(self.cfg.threads, self.processors)

    def configure(
        self,
        user_of: UserOf,
        take_page_slot: TakeSlot,
        half_sent_address: int | None,
        streams_user: int | None,
        trusted_proxies: int,
    ) -> None:
        """``user_of`` says whose request it is, by its cookies; None means a stranger's. ``take_page_slot``
        gives a slot for a page of this user's, or why there is none.
        """
        self._user_of, self._take_page_slot, self._trusted_proxies = user_of, take_page_slot, trusted_proxies
        if half_sent_address is not None:
            # Each worker has its part, so that the limit holds for all of them together.
            self._connections.limit_half_sent(ceil(half_sent_address / self.cfg.workers))
        if streams_user is not None:
            # A user who opens one stream too many has an older one ended by it: both are there for a moment.
            self.tpool.limit_long(streams_user + STREAMS_THAT_GIVE_WAY)

    def share_connections(
        self, note_connections: Callable[[int], None], fewest_connections: Callable[[], float]
    ) -> None:
        """Tell the other workers how many there are here, and take about as many as they have."""
        self._note_connections, self._fewest_connections = note_connections, fewest_connections

    def run(self) -> None:
        for listener in self.sockets:
            self._prepare(listener)
        self.poller.register(
            self.method_queue.fileno(), selectors.EVENT_READ, self.method_queue.run_callbacks
        )
        while self.alive:
            self._run_once(self._seconds_to_wait())
            if not self.is_parent_alive():
                break
        self._stop_listening()
        self._finish()

    @property
    def is_answering(self) -> bool:
        return self._answering > 0

    def _prepare(self, listener: Any) -> None:
        """What is set here, every connection that it accepts has too."""
        listener.setblocking(False)
        self._addresses[listener] = listener.getsockname()
        with suppress(OSError, AttributeError):  # a Unix socket has no such options, nor has every system
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            # The system too gives up a client that takes nothing of what it was sent.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_SECONDS * 1000))

    def _seconds_to_wait(self) -> float:
        """For events. New connections are among them, unless all threads of this worker are taken: then the
        other workers have a moment to take what they could serve at once.
        """
        now = time.monotonic()
        if now < self._accepts_from:
            return min(LEFT_TO_OTHERS_SECONDS, self._accepts_from - now)
        if not self.tpool.are_full:
            self.set_accept_enabled(True)
            return LOOP_SECONDS
        if self._accepting:
            self.set_accept_enabled(False)
            self._accept_at = now + LEFT_TO_OTHERS_SECONDS
        if now >= self._accept_at:
            self._accept_at = now + LEFT_TO_OTHERS_SECONDS
            most = ACCEPTED_WHEN_FULL if self.tpool.has_no_thread else ACCEPTED_WHILE_TURNS_BEGIN
            for listener in self.sockets:
                self.accept(listener, most)
        return LEFT_TO_OTHERS_SECONDS

    def _run_once(self, seconds: float) -> None:
        self._received = 0
        self._note_connections(len(self._connections) + self._answering)
        events = self.poller.select(0 if self.tpool.can_start_strangers else seconds)
        # First: who has been answered may have sent the next request already, which is among the events.
        if self.method_queue.has_some:
            self.method_queue.run_callbacks()
        for key, _ in events:
            key.data(key.fileobj)
        now = time.monotonic()
        if now >= self._notify_at:
            self._notify_at = now + NOTIFY_SECONDS
            self.notify()
        if not events or now >= self._strangers_at:
            self._strangers_at = now + STRANGERS_WAIT_SECONDS
            self.tpool.start_strangers()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        self._refused_lines.sweep()
        for connection in self._connections.late(now):
            self._go_on(self._end_late, connection)
        for connection in self._connections.too_many(now):
            self._close(connection)
        for connection in self._connections.too_much_unsent():
            self._abort(connection)

    def _stop_listening(self) -> None:
        """At once, so that a proxy sends new requests elsewhere. What has come already is still served."""
        self.set_accept_enabled(False)
        for listener in self.sockets:
            self.accept(listener, self.cfg.backlog)
            listener.close()

    def _finish(self) -> None:
        """Answer what is under way, for as long as the server may take to stop."""
        ends = time.monotonic() + self.cfg.graceful_timeout
        for connection in self._connections.all(Waits.IDLE):
            connection.deadline = min(connection.deadline, time.monotonic() + self._stopping_keepalive)
        while (self._answering or len(self._connections)) and time.monotonic() < ends:
            self._run_once(0.1)
        # Nothing else is closed: a thread that is still at work may write to the queue, and its descriptor
        # could be that of another file by then.
        self.tpool.shutdown(wait=False)

    @property
    def _stopping_keepalive(self) -> float:
        return STOPPING_PROXY_KEEPALIVE_SECONDS if self._trusted_proxies else STOPPING_KEEPALIVE_SECONDS

    def accept(self, listener: Any, most: int | None = None) -> None:
        """Take what other workers should not have instead, or, if told how many, so many in any case."""
        if most is not None:
            while most and self._accept_one(listener):
                most -= 1
            return
        has_waited, self._has_left_some = self._has_left_some, False
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._accept_one(listener) or self.tpool.are_full:
                return
            if not has_waited and self._is_ahead:
                break
        if self._is_ahead:
            self._has_left_some = True
            self._pause_accepting(LEFT_WHEN_AHEAD_SECONDS)

    @property
    def _is_ahead(self) -> bool:
        own = len(self._connections) + self._answering
        self._note_connections(own)
        return own >= self._fewest_connections() + MOST_AHEAD

    def _accept_one(self, listener: Any) -> bool:
        """Whether there was a connection to accept."""
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                return self._make_room() or self._pause_accepting(NO_DESCRIPTORS_SECONDS)
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED):
                return False
            raise
        if len(self._connections) + self._answering >= self.worker_connections and not self._make_room():
            sock.close()
            return True
        connection = Connection(self.cfg, sock, client, self._addresses[listener], self._user_of)
        connection.deadline = time.monotonic() + HEAD_SECONDS
        self._go_on(self._receive, connection)
        return True

    def _make_room(self) -> bool:
        connection = self._connections.to_make_room()
        if connection is not None:
            self._close(connection)
        return connection is not None

    def _pause_accepting(self, seconds: float) -> bool:
        """Otherwise the loop would do nothing but try to accept the next one."""
        self.set_accept_enabled(False)
        self._accepts_from = time.monotonic() + seconds
        return False

    def _receive(self, connection: Connection) -> None:
        self._received += 1
        if not connection.receive(time.monotonic(), drop_if_left=self._received > MANY_AT_ONCE):
            self._close(connection)
        else:
            self._go_on_receiving(connection)

    def _go_on_receiving(self, connection: Connection) -> None:
        incoming = connection.incoming
        if incoming.is_whole:
            self._answer_in_thread(connection)
            return
        self._wait(connection, Waits.RECEIVING if incoming.size else Waits.IDLE)

    def _answer_in_thread(self, connection: Connection) -> None:
        incoming = connection.incoming
        request, user, part = incoming.request, incoming.user, ""
        address = incoming.forwarded_address(self._trusted_proxies) or connection.address
        lane, key = self.tpool.lane_for(request, user), user or address
        if request is not None and is_sign_in(request):
            key, part = address, name_signed_in_with(incoming.body_so_far)
        connection.may_be_dropped = lane.in_flight(key) > 0
        if connection.has_left_before_answer():
            self._close(connection)  # who sends many and leaves pays for none of them
            return
        self._connections.remove(connection)
        connection.user = user
        # Otherwise a stranger who sends many requests at once would never make room for others.
        connection.must_close = lane is self.tpool.strangers and lane.waiting > 0
        if lane is self.tpool.pages and not is_static(request):
            slot, refusal = self._take_page_slot(key)
            connection.page_slot = slot or refusal
            if refusal is not None:
                lane = self.tpool.strangers  # it need not wait for the user's other requests
        connection.leave_lane = partial(lane.done, key, part)
        self._answering += 1
        job = Job(partial(self.handle, connection), partial(self._refuse, connection), time.monotonic())
        self.add_to_lane(connection, lane, key, part, job)

    def add_to_lane(self, connection: Connection, lane: Lane, key: str, part: str, job: Job) -> None:
        lane.add(key, job, part)

    def _refuse(self, connection: Connection) -> None:
        """Too many requests wait already. It is said without a thread."""
        self._answering -= 1
        self._refused_lines.refused(connection, time.monotonic())
        connection.deadline, connection.keep = time.monotonic() + SEND_SECONDS, False
        self._go_on(self._send_busy, connection)

    def _send_busy(self, connection: Connection) -> None:
        try:
            connection.send(self.busy_answer(connection), may_wait=True)
        except ClientGone:
            self._close(connection)
        else:
            self._send_rest(connection)

    def finish_request(self, connection: Connection, keep: bool, is_gone: bool) -> None:
        """A thread has answered; the main loop goes on from here."""
        self._answering -= 1
        connection.leave_lane()
        if is_gone:
            self._abort(connection)
        else:
            connection.deadline = time.monotonic() + SEND_SECONDS
            connection.keep = keep
            self._go_on(self._send_rest, connection)

    def _keep(self, connection: Connection) -> None:
        now = time.monotonic()
        is_known = connection.user is not None or self._trusted_proxies  # a proxy's may be anybody's next
        seconds = KEEPALIVE_SECONDS if is_known else STRANGER_KEEPALIVE_SECONDS
        connection.deadline = now + (seconds if self.alive else self._stopping_keepalive)
        connection.begin_next_request(now)
        self._go_on_receiving(connection)

    def _end_late(self, connection: Connection) -> None:
        """A client that has sent half a request is told so."""
        waits = connection.waits
        if waits is Waits.RECEIVING:
            connection.incoming.error = TooSlow()
            self._answer_in_thread(connection)
        elif waits is Waits.SENDING:
            self._abort(connection)
        else:
            self._close(connection)
