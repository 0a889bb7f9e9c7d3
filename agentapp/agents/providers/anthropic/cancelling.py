"""Cancelling a call of the Messages API from another thread, by shutting down the socket that it uses."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import httpcore2
import httpx2

from agentapp.agents.provider import Cancellation


class Sending(NamedTuple):
    """A call whose request is being sent, and what to call when the first byte of it leaves."""

    cancellation: Cancellation
    on_sent: Callable[[], object]


_sending_for: ContextVar[Sending | None] = ContextVar("agentapp_sending_for", default=None)


@contextmanager
def sending_for(sending: Sending) -> Iterator[None]:
    """Meanwhile, the connection of a cancellable client that this thread writes to belongs to this call."""
    token = _sending_for.set(sending)
    try:
        yield
    finally:
        _sending_for.reset(token)


def make_cancellable(client: httpx2.Client) -> httpx2.Client:
    """The same client, with connections that can be shut down even before the response has begun.

    A pool takes its network as an argument, but the client makes its pools itself and cannot be given one, so
    private attributes are replaced here. Should another version not have them, calls still work, and can be
    cancelled from their response on: see `register_response`.
    """
    mounts = getattr(client, "_mounts", {})
    for transport in (getattr(client, "_transport", None), *mounts.values()):
        pool = getattr(transport, "_pool", None)
        network = getattr(pool, "_network_backend", None)
        if isinstance(network, httpcore2.NetworkBackend):
            pool._network_backend = _CancellableNetwork(network)  # type: ignore[union-attr]
    return client


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
        return _CancellableStream(
            self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        )

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        return _CancellableStream(self._network.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _CancellableStream(httpcore2.NetworkStream):
    """A connection. It serves one call after the other and belongs to the one that wrote to it last."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._owner: Cancellation | None = None
        self._is_down = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        sending = _sending_for.get()
        self._assign_to(sending and sending.cancellation)
        if sending is not None:
            sending.on_sent()
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _CancellableStream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _assign_to(self, call: Cancellation | None) -> None:
        with self._lock:
            if self._is_down and self._owner is not call:
                # The call before was cancelled when the pool had already given its connection to this one.
                # Nothing has been sent yet, and this error makes the pool take another connection.
                raise httpcore2.ConnectionNotAvailable
            self._owner = call
        if call is not None:
            call.on_cancel(partial(self._shut_down_for, call))

    def _shut_down_for(self, call: Cancellation) -> None:
        # The lock keeps the socket from being closed meanwhile: its number could be another connection's.
        with self._lock:
            if self._owner is call:
                self._is_down = True
                _shut_down(self._stream)


def _shut_down(stream: httpcore2.NetworkStream) -> None:
    """Wakes a thread that reads from the socket, and tells the other side. Closing it would do neither."""
    connection = stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with suppress(OSError):  # it has ended already
            # The method of a TLS socket would let the reader go on without decrypting.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
