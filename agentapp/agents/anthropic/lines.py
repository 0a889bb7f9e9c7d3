"""Hanging up on a call of the Messages API from another thread: its socket is shut down under it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import httpcore2
import httpx2

from agentapp.agents.provider import Line

_calling: ContextVar[Line | None] = ContextVar("agentapp_calling", default=None)


@contextmanager
def calling(line: Line) -> Iterator[None]:
    """Whatever stream of a `reachable` client this thread writes to meanwhile belongs to the line."""
    token = _calling.set(line)
    try:
        yield
    finally:
        _calling.reset(token)


def reachable(client: httpx2.Client) -> httpx2.Client:
    """The same client, over streams that can be hung up on even before the response has begun.

    A pool takes its network as an argument, but the client makes its pools itself and offers no way to
    hand one on. Should they be found no longer, calls work on and are hung up on as in `reach`.
    """
    mounts = getattr(client, "_mounts", {})
    for transport in (getattr(client, "_transport", None), *mounts.values()):
        pool = getattr(transport, "_pool", None)
        network = getattr(pool, "_network_backend", None)
        if isinstance(network, httpcore2.NetworkBackend):
            pool._network_backend = _Network(network)  # type: ignore[union-attr]
    return client


def reach(line: Line, response: httpx2.Response, is_over: Callable[[], bool]) -> None:
    """For a client that is not `reachable`: from its response on the line can be hung up.

    Once the answer is over, the connection may be another call's already, so then it is left alone.
    """
    stream: Any = response.extensions.get("network_stream")

    def end() -> None:
        if not is_over():
            _shut_down(stream)

    if isinstance(stream, httpcore2.NetworkStream) and not isinstance(stream, _Stream):
        line.opened(end)


class _Network(httpcore2.NetworkBackend):
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
        return _Stream(self._network.connect_tcp(host, port, timeout, local_address, socket_options))

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(self._network.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    """A connection, which serves one call after the other and belongs to the one that wrote to it last."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._owner: Line | None = None
        self._is_down = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._taken_by(_calling.get())
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _taken_by(self, line: Line | None) -> None:
        with self._lock:
            if self._is_down and self._owner is not line:
                # The call before was hung up on when the pool had already given its connection to this
                # one. Nothing has been sent, and the pool, told so, takes another.
                raise httpcore2.ConnectionNotAvailable
            self._owner = line
        if line is not None:
            line.opened(partial(self._hung_up_by, line))

    def _hung_up_by(self, line: Line) -> None:
        # The lock keeps the socket from being closed meanwhile: its number could be another connection's.
        with self._lock:
            if self._owner is line:
                self._is_down = True
                _shut_down(self._stream)


def _shut_down(stream: httpcore2.NetworkStream) -> None:
    """Wakes a thread that reads from it, and the other side sees the end. To close would do neither."""
    connection = stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with suppress(OSError):  # it has ended already
            # Not the method of a TLS socket, which would let the reader go on without decrypting.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
