"""A connection to the Messages API that can be given up at any moment."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import httpx2

from agentapp.agents.provider import Cancellation, Waiting
from agentapp.agents.providers.anthropic.cancelling import Sending, shut_down

T = TypeVar("T")

RECEIVE_BYTES = 64 * 1024
# A connection that was idle for longer is not used again: the other side may be about to close it.
KEEPALIVE_SECONDS = 30.0


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class Connection:
    """It serves one call after the other, and belongs to the one that it was assigned to last."""

    def __init__(self, origin: Origin, connected: socket.socket) -> None:
        self.origin, self.idle_since = origin, 0.0
        self._socket, self._timeout = connected, connected.gettimeout()
        self._lock = threading.Lock()
        self._owner: Cancellation | None = None
        self._sending: Sending | None = None
        self._is_down = False

    def is_alive(self) -> bool:
        """Nothing is to be read from a connection that is idle, except its end."""
        if time.monotonic() - self.idle_since > KEEPALIVE_SECONDS:
            return False
        idle = select.poll()
        idle.register(self._socket, select.POLLIN)
        return not idle.poll(0)

    def assign(self, sending: Sending | None) -> bool:
        """False if the call before was given up at the very moment at which its answer was complete."""
        call = sending and sending.cancellation
        with self._lock:
            if self._is_down:
                return False
            self._owner, self._sending = call, sending
        if call is not None:
            call.on_cancel(partial(self._shut_down_for, call))
        return True

    def send(self, message: bytes, seconds: float | None) -> None:
        if self._sending is not None:
            self._sending.on_sent()
        unsent = memoryview(message)
        try:
            while unsent:
                unsent = unsent[self._wait(partial(self._send, unsent), seconds) :]
        except TimeoutError as error:
            raise httpx2.WriteTimeout(str(error)) from None
        except OSError as error:
            raise httpx2.WriteError(str(error)) from error

    def receive(self, seconds: float | None) -> bytes:
        """Empty if the other side has hung up."""
        try:
            return self._wait(self._receive, seconds)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error)) from None
        except OSError as error:
            raise httpx2.ReadError(str(error)) from error

    def close(self) -> None:
        with self._lock:
            self._socket.close()

    def forget_call(self) -> None:
        with self._lock:
            self._owner = self._sending = None

    def _wait(self, attempt: Callable[[float | None], T], seconds: float | None) -> T:
        waiting: Waiting | None = self._sending and self._sending.waiting
        return attempt(seconds) if waiting is None else waiting.wait_for(attempt)

    def _send(self, data: memoryview, seconds: float | None) -> int:
        self._set_timeout(seconds)
        return self._socket.send(data)

    def _receive(self, seconds: float | None) -> bytes:
        self._set_timeout(seconds)
        return self._socket.recv(RECEIVE_BYTES)

    def _set_timeout(self, seconds: float | None) -> None:
        """Only if it changes: it is a call of the system, and each lets other threads go first."""
        if seconds != self._timeout:
            self._timeout = seconds
            self._socket.settimeout(seconds)

    def _shut_down_for(self, call: Cancellation) -> None:
        # The lock keeps the socket from being closed meanwhile: its number could be another connection's.
        with self._lock:
            if self._owner is call:
                self._is_down = True
                shut_down(self._socket)
