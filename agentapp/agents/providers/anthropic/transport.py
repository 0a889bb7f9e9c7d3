"""HTTP/1.1 for the SDK's client, over connections that can be given up at any moment.

httpx's own transport takes several times as long, most of it in a parser that is written in Python, and has
no way to give up a call. This one does what the Messages API needs; behind a proxy httpx's own is used.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import httptools
import httpx2

from agentapp.agents.providers.anthropic.cancelling import Sending, current_sending, opened
from agentapp.agents.providers.anthropic.connection import KEEPALIVE_SECONDS, Connection, Origin

MAX_HEAD_BYTES = 64 * 1024
DEFAULT_PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})


class DirectTransport(httpx2.BaseTransport):
    """Keeps the connections that are free. Each serves one call at a time."""

    def __init__(self, certificates: ssl.SSLContext) -> None:
        certificates.set_alpn_protocols(["http/1.1"])
        self._certificates = certificates
        self._lock = threading.Lock()
        self._free: dict[Origin, deque[Connection]] = {}  # the one that was used last at the end

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        timeouts = request.extensions.get("timeout", {})
        message = b"%s\r\n%s" % (head_of(request), request.read())
        return self.response_to(self.ask(origin_of(request.url), message, timeouts))

    def ask(self, origin: Origin, message: bytes, timeouts: Mapping[str, float | None]) -> Answer:
        """Send the bytes of a request, and read the head of the answer."""
        connection = self._connection(origin, current_sending(), timeouts.get("connect"))
        try:
            connection.send(message, timeouts.get("write"))
            answer = Answer(connection, timeouts.get("read"))
            answer.read_head()
        except BaseException:
            connection.close()
            raise
        return answer

    def response_to(self, answer: Answer) -> httpx2.Response:
        return httpx2.Response(
            answer.status,
            headers=answer.headers,
            stream=AnswerStream(answer, self),
            extensions={"http_version": b"HTTP/1.1"},
        )

    def keep(self, connection: Connection) -> None:
        """For another call. Those that were idle for too long are closed: after a crowd there are many."""
        connection.idle_since = now = time.monotonic()
        with self._lock:
            free = self._free.setdefault(connection.origin, deque())
            free.append(connection)
            expired = []
            while now - free[0].idle_since > KEEPALIVE_SECONDS:
                expired.append(free.popleft())
        for each in expired:
            each.close()

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, {}
        for connections in free.values():
            for connection in connections:
                connection.close()

    def _connection(self, origin: Origin, sending: Sending | None, seconds: float | None) -> Connection:
        """The one that was used last, or a new one: so that the others can end."""
        while True:
            with self._lock:
                free = self._free.get(origin)
                connection = free.pop() if free else None
            if connection is None:
                connection = Connection(origin, opened(partial(self._open, origin, seconds), sending))
            elif not connection.is_alive():
                connection.close()
                continue
            if connection.assign(sending):
                return connection
            connection.close()

    def _open(self, origin: Origin, seconds: float | None) -> socket.socket:
        try:
            connected = socket.create_connection((origin.host, origin.port), seconds)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if origin.scheme == "https":
                    return self._certificates.wrap_socket(connected, server_hostname=origin.host)
            except BaseException:
                connected.close()
                raise
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except (OSError, ValueError) as error:  # a name that cannot be looked up is a ValueError at times
            raise httpx2.ConnectError(str(error)) from error
        return connected


class Answer:
    """One response, as far as it has come. The parser calls the methods that begin with ``on_``."""

    def __init__(self, connection: Connection, seconds: float | None) -> None:
        self.connection, self._seconds = connection, seconds
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = self._is_whole = False
        self.can_be_followed = False  # by another request on the same connection
        self._head_bytes = 0
        self._body: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0

    def read_head(self) -> None:
        while not self._has_head:
            data = self.connection.receive(self._seconds)
            if not data:
                raise httpx2.RemoteProtocolError("the server hung up before it answered")
            self._head_bytes += len(data)
            self._feed(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._has_head:
                raise httpx2.RemoteProtocolError("the headers of the answer are too long")

    def read_body(self) -> bytes:
        """All that has come; more is waited for only if there is nothing. Empty at the end."""
        while not self._body and not self._is_whole:
            data = self.connection.receive(self._seconds)
            if data:
                self._feed(data)
            elif self._has_length:
                raise httpx2.RemoteProtocolError("the server hung up before its answer was whole")
            else:
                self._is_whole = True
        body, self._body = b"".join(self._body), []
        return body

    @property
    def is_for_httpx(self) -> bool:
        """Whether the client has something to do with it: to unpack it, or to keep its cookies."""
        return any(name.lower() in (b"content-encoding", b"set-cookie") for name, _ in self.headers)

    @property
    def _has_length(self) -> bool:
        """Otherwise the answer ends when the server hangs up."""
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise httpx2.RemoteProtocolError(f"the answer cannot be read: {type(error).__name__}") from error

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise httpx2.RemoteProtocolError("the server sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole, self.can_be_followed = True, self._parser.should_keep_alive()
        else:
            self.headers = []  # such as "100 Continue": the answer is still to come


class AnswerStream(httpx2.SyncByteStream):
    """The body of an answer, for httpx. What came together is read together, however many events it is."""

    def __init__(self, answer: Answer, transport: DirectTransport) -> None:
        self._answer: Answer | None = answer
        self._transport = transport
        self._is_read_out = False

    def __iter__(self) -> Iterator[bytes]:
        while (answer := self._answer) is not None and (data := answer.read_body()):
            yield data
        self._is_read_out = True

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if answer.can_be_followed and self._is_read_out:
            answer.connection.forget_call()
            self._transport.keep(answer.connection)
        else:
            answer.connection.close()


def origin_of(url: httpx2.URL) -> Origin:
    if url.scheme not in DEFAULT_PORTS:
        raise httpx2.UnsupportedProtocol(f"an address begins with http:// or https://, not {url.scheme!r}")
    return Origin(url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS[url.scheme])


def head_of(request: httpx2.Request) -> bytes:
    """Its first lines, without the empty one that ends them."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx2.LocalProtocolError("a header holds a line break")
    return b"\r\n".join((*lines, b""))
