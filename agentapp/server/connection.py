"""One client's connection: what is coming in, what is still to go out, and when that must be over."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentapp.server.incoming_request import IncomingRequest, UserOf, nobody
from agentapp.server.limits import (
    BODY_BYTES_A_SECOND,
    BODY_GRACE_SECONDS,
    BODY_SECONDS,
    HEAD_SECONDS,
    MAX_LINGER_BYTES,
    SEND_SECONDS,
)

RECEIVE_BYTES = 64 * 1024
NO_LINGER = struct.pack("ii", 1, 0)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(OSError):
    """The client hung up, or takes nothing of its answer."""


class Connection:
    """Either the worker's main loop has it, while it waits for the client, or one thread, which answers.

    No call on the socket ever blocks. Each call lets other threads go first, so there are as few as
    possible: ``MSG_DONTWAIT`` costs none, and `setblocking` would.
    """

    def __init__(
        self, cfg: Any, sock: socket.socket, client: Any, server: Any, user_of: UserOf = nobody
    ) -> None:
        self.sock, self.client, self.server = sock, client, server
        self._cfg, self._user_of = cfg, user_of
        self._requests = 0
        self._unsent = memoryview(b"")
        self._lingered = 0
        self.user: str | None = None  # whose last request this was; None is a stranger
        self.waits: Any = None  # for what: see `connections.Waits`
        self.watched = 0  # the events that the poller reports
        self.page_slot: Any = None  # or why there is none
        self.leave_lane: Callable[..., None] = _nothing  # when a thread has answered the request
        self.is_turn = False  # that is to begin
        self.has_begun = False  # the turn, or it lets others begin before it
        self.in_thread_since = 0.0  # zero while it waits for one
        self.may_be_dropped = False  # if its client has left: the same client has others under way
        self.must_close = False  # after the answer
        self.keep = False  # after the answer, for another request
        self.deadline = 0.0
        self.since = 0.0  # when the request that comes in began
        self.incoming = self._next_request()

    @property
    def address(self) -> str:
        """What counts as one address. For IPv6 it is the network: each one has billions of addresses. Without
        one, as on a Unix socket, it is empty.
        """
        host = str(self.client[0]) if isinstance(self.client, tuple) else ""
        if ":" not in host or host.startswith("::ffff:"):
            return host
        return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex(":", 2)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def receive(self, now: float, *, drop_if_left: bool = False) -> bool:
        """Read what is there. False if the connection is over. To ``drop_if_left`` costs a call, but a client
        that has sent a whole GET and left then costs next to nothing.
        """
        try:
            data = self.sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data and drop_if_left and not self.incoming.size and _is_whole_get(data) and self.has_left():
            return False
        if data:
            self.feed(data, now)
        elif self.incoming.size:
            self.incoming.end()
        return bool(data or self.incoming.size)

    def feed(self, data: bytes, now: float) -> None:
        incoming = self.incoming
        if not incoming.size:
            self.since, self.deadline = now, now + HEAD_SECONDS
        had_head = incoming.has_head
        incoming.feed(data)
        if incoming.has_head and not had_head:
            self.deadline = now + BODY_SECONDS
        if incoming.wants_continue:
            incoming.wants_continue = False
            with suppress(OSError):  # if it cannot take these few bytes, it is told nothing and may wait
                self.sock.send(CONTINUE, socket.MSG_DONTWAIT)

    def is_late(self, now: float) -> bool:
        """Whether the request that comes in takes too long, or its body comes too slowly."""
        body_seconds = now - (self.deadline - BODY_SECONDS)
        return now >= self.deadline or (
            self.incoming.has_head
            and body_seconds >= BODY_GRACE_SECONDS
            and self.incoming.body_size < body_seconds * BODY_BYTES_A_SECOND
        )

    def begin_next_request(self, now: float) -> None:
        """After an answer. The next request may have come together with the one that was answered."""
        rest = self.incoming.rest()
        self.incoming = self._next_request()
        if rest:
            self.feed(rest, now)

    def has_left_before_answer(self) -> bool:
        """Whether nobody waits for the answer, and nothing is lost if there is none."""
        return self.may_be_dropped and self.incoming.can_be_dropped() and self.has_left()

    def has_left(self) -> bool:
        """Whether the client has hung up. One that has only ended its sending looks the same."""
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, data: bytes, *, may_wait: bool = False) -> None:
        """Send it all, or raise `ClientGone` if the client takes nothing of it for too long.

        If it ``may_wait``, the rest is left for `send_rest` or for the next `send`, and no thread waits.
        """
        unsent = self._try_to_send(memoryview(b"".join((self._unsent, data)) if self._unsent else data))
        while unsent and not may_wait:
            if not self._wait_until_writable():
                raise ClientGone("the client takes nothing of its answer")
            unsent = self._try_to_send(unsent)
        self._unsent = unsent

    def send_rest(self, now: float) -> bool:
        """Send what the client takes now of the rest. False if the client is gone."""
        try:
            unsent = self._try_to_send(self._unsent)
        except OSError:
            return False
        if len(unsent) < len(self._unsent):
            self.deadline = now + SEND_SECONDS
        self._unsent = unsent
        return True

    def end_answer(self) -> bool:
        """Tell the client that nothing more comes. False if it is gone already."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def end_sending(self) -> None:
        """The same, and forget what could not be sent."""
        self._unsent = memoryview(b"")
        self.end_answer()

    def linger(self) -> bool:
        """Throw away what the client still sends. To close before it has hung up could cut off what it has
        not read yet. False if the connection can be closed.
        """
        try:
            data = self.sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._lingered += len(data)
        return bool(data) and self._lingered < MAX_LINGER_BYTES

    def abort(self) -> None:
        """Close it, and have the system forget what the client did not take."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.close()

    def close(self) -> None:
        self.release_page_slot()
        with suppress(OSError):
            self.sock.close()

    def release_page_slot(self) -> None:
        """Not before the client has taken its answer, which takes memory until then."""
        slot, self.page_slot = self.page_slot, None
        if hasattr(slot, "release"):
            slot.release()

    def _next_request(self) -> IncomingRequest:
        self._requests += 1
        return IncomingRequest(self._cfg, self.client, self._requests, self._user_of)

    def _try_to_send(self, data: memoryview) -> memoryview:
        """Gives the rest that could not be sent."""
        while data:
            try:
                data = data[self.sock.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                break
            except OSError as error:
                raise ClientGone("the client hung up") from error
        return data

    def _wait_until_writable(self) -> bool:
        waiting = select.poll()
        waiting.register(self.sock, select.POLLOUT)
        return bool(waiting.poll(SEND_SECONDS * 1000))


def _is_whole_get(data: bytes) -> bool:
    """Seen at a glance, and nothing is lost if it is not answered: see `IncomingRequest.can_be_dropped`."""
    if not data.startswith(b"GET ") or not data.endswith(b"\r\n\r\n"):
        return False
    return b" HTTP/1.1\r\n" in data and b"close" not in data.lower()


def _nothing() -> None:
    """No request was answered yet."""
