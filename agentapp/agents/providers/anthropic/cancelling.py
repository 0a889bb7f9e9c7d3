"""Cancelling a call of the Messages API from another thread, by shutting down the socket that it uses; and
waiting for its socket a little at a time.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import httpcore2
import httpx2

from agentapp.agents.provider import Cancellation, Waiting
from agentapp.agents.threads import run_in_own_thread

CONNECTING_SECONDS = 0.25  # between two looks whether the call is given up


class Sending(NamedTuple):
    """A call whose request is being sent, and what to call when the first byte of it leaves."""

    cancellation: Cancellation
    on_sent: Callable[[], object]
    waiting: Waiting | None = None


class Closable(Protocol):
    def close(self) -> object: ...


S = TypeVar("S", bound=Closable)

_sending_for: ContextVar[Sending | None] = ContextVar("agentapp_sending_for", default=None)


@contextmanager
def sending_for(sending: Sending) -> Iterator[None]:
    """Meanwhile, the connection of a cancellable client that this thread writes to belongs to this call."""
    token = _sending_for.set(sending)
    try:
        yield
    finally:
        _sending_for.reset(token)


def current_sending() -> Sending | None:
    """The call whose request this thread is about to send."""
    return _sending_for.get()


def opened(connect: Callable[[], S], sending: Sending | None) -> S:
    """A new connection. A call that waits a little at a time connects on another thread: nothing ends the
    look-up of a name. What comes of it after the call was given up is closed.
    """
    if sending is None or sending.waiting is None:
        return connect()
    connecting = run_in_own_thread(connect, "agentapp-connect")
    try:
        return sending.waiting.wait_for(lambda seconds: connecting.result(min(seconds, CONNECTING_SECONDS)))
    except TimeoutError:
        connecting.add_done_callback(_close_if_connected)
        raise httpx2.ConnectTimeout("the call was given up") from None


def make_cancellable(client: httpx2.Client) -> httpx2.Client:
    """The same client, with connections that can be shut down even before the response has begun.

    A pool takes its network as an argument, but the client makes its pools itself and cannot be given one, so
    private attributes are replaced here. Should another version not have them, calls still work, and can be
    cancelled from their response on: see `register_response`.
    """
    for pool in _pools_of(client):
        network = getattr(pool, "_network_backend", None)
        if isinstance(network, httpcore2.NetworkBackend):
            pool._network_backend = _CancellableNetwork(network)
    return client


def is_cancellable(client: object) -> bool:
    """Whether `make_cancellable` has reached all connections of this client, or of the SDK's client of it."""
    pools = _pools_of(getattr(client, "_client", client))
    networks = [getattr(pool, "_network_backend", None) for pool in pools]
    return bool(networks) and all(isinstance(network, _CancellableNetwork) for network in networks)


def _pools_of(client: object) -> list[Any]:
    mounts = getattr(client, "_mounts", {})
    transports = (getattr(client, "_transport", None), *mounts.values())
    return [getattr(transport, "_pool", None) for transport in transports if transport is not None]


def register_response(
    cancellation: Cancellation, response: httpx2.Response, is_complete: Callable[[], bool]
) -> None:
    """For a client that was not made cancellable: its call can be cancelled from now on.

    Once the answer is complete, the connection may already be used by another call, so it is left alone.
    """
    stream: Any = response.extensions.get("network_stream")

    def end() -> None:
        if not is_complete():
            _shut_down(stream)

    if isinstance(stream, httpcore2.NetworkStream) and not isinstance(stream, _CancellableStream):
        cancellation.on_cancel(end)


class _CancellableNetwork(httpcore2.NetworkBackend):
    def __init__(self, network: httpcore2.NetworkBackend) -> None:
        self._network = network

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        return _connected(
            lambda: self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        )

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        return _connected(lambda: self._network.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


def _connected(connect: Callable[[], httpcore2.NetworkStream]) -> _CancellableStream:
    return _CancellableStream(opened(connect, current_sending()))


def _close_if_connected(connecting: Future[S]) -> None:
    if connecting.exception() is None:
        connecting.result().close()


class _CancellableStream(httpcore2.NetworkStream):
    """A connection. It serves one call after the other and belongs to the one that wrote to it last."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._socket = _socket_of(stream)
        self._socket_timeout: float | None = None  # None if it is not known
        self._lock = threading.Lock()
        self._owner: Cancellation | None = None
        self._waiting: Waiting | None = None
        self._is_down = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._waiting is None:
            self._socket_timeout = None
            return self._stream.read(max_bytes, timeout)
        try:
            return self._waiting.wait_for(partial(self._receive, max_bytes))
        except TimeoutError as exc:
            raise httpcore2.ReadTimeout(str(exc)) from None
        except OSError as exc:
            raise httpcore2.ReadError(str(exc)) from exc

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        sending = current_sending()
        self._assign_to(sending)
        if sending is not None:
            sending.on_sent()
        if self._waiting is None or self._socket is None:
            self._socket_timeout = None
            self._stream.write(buffer, timeout)
            return
        unsent = memoryview(buffer)
        try:
            while unsent:
                unsent = unsent[self._waiting.wait_for(partial(self._send, self._socket, unsent)) :]
        except TimeoutError as exc:
            raise httpcore2.WriteTimeout(str(exc)) from None
        except OSError as exc:
            raise httpcore2.WriteError(str(exc)) from exc

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _connected(lambda: self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _receive(self, max_bytes: int, seconds: float) -> bytes:
        if self._socket is not None:
            self._set_timeout(self._socket, seconds)
            return self._socket.recv(max_bytes)
        try:
            return self._stream.read(max_bytes, seconds)
        except httpcore2.ReadTimeout:
            raise TimeoutError from None

    def _send(self, connection: socket.socket, data: memoryview, seconds: float) -> int:
        self._set_timeout(connection, seconds)
        return connection.send(data)

    def _set_timeout(self, connection: socket.socket, seconds: float) -> None:
        """Only if it changes: it is a call of the system, and each lets other threads go first."""
        if seconds != self._socket_timeout:
            self._socket_timeout = seconds
            connection.settimeout(seconds)

    def _assign_to(self, sending: Sending | None) -> None:
        call = sending and sending.cancellation
        with self._lock:
            if self._is_down and self._owner is not call:
                # The call before was cancelled when the pool had already given its connection to this one.
                # Nothing has been sent yet, and this error makes the pool take another connection.
                raise httpcore2.ConnectionNotAvailable
            self._owner, self._waiting = call, sending and sending.waiting
        if call is not None:
            call.on_cancel(partial(self._shut_down_for, call))

    def _shut_down_for(self, call: Cancellation) -> None:
        # The lock keeps the socket from being closed meanwhile: its number could be another connection's.
        with self._lock:
            if self._owner is call:
                self._is_down = True
                _shut_down(self._stream)


def _socket_of(stream: httpcore2.NetworkStream) -> socket.socket | None:
    """The socket that carries what is read and written. None if somebody else decrypts what it carries, as
    behind a proxy that is itself spoken to by TLS.
    """
    connection = stream.get_extra_info("socket")
    is_encrypted = stream.get_extra_info("ssl_object") is not None
    if is_encrypted and not isinstance(connection, ssl.SSLSocket):
        return None
    return connection if isinstance(connection, socket.socket) else None


def _shut_down(stream: httpcore2.NetworkStream) -> None:
    connection = stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """Wakes a thread that reads from the socket, and tells the other side. Closing it would do neither."""
    with suppress(OSError):  # it has ended already
        # The method of a TLS socket would let the reader go on without decrypting.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
