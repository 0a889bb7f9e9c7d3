"""A request while it comes in, piece by piece: how much of it is still missing? No socket is used here.

gunicorn's own parser reads from a socket and waits there, so a client that sends slowly would hold a thread.
Here it gets only what has come already, once that is enough.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from typing import Any

from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import InvalidChunkSize, InvalidRequestLine, LimitRequestHeaders, NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import Unreader

from agentapp.server.limits import (
    MAX_BODY_BYTES,
    MAX_BODY_BYTES_SIGNED_OUT,
    MAX_CHUNKS,
    MAX_HEAD_BYTES,
)

MAX_CHUNK_LINE_BYTES = 8190
MAX_CHUNKED_OVERHEAD = 2  # times as long as what it holds: a chunked body that is longer is refused

UserOf = Callable[[str], str | None]


def nobody(cookies: str) -> None:
    """Whose cookies these are, where nobody can sign in."""


class IncomingRequest:
    """Feed it what the client sends until it ``is_whole``. Then either there is an ``error``, or ``request``
    is gunicorn's request with its body.

    ``user_of`` says whose request it is, by its cookies; None means a stranger's.
    """

    def __init__(self, cfg: Any, client: Any, number: int, user_of: UserOf = nobody) -> None:
        self._user_of = user_of
        self._received = _Received()
        self._parser = RequestParser(cfg, (), client)
        self._parser.unreader = self._received
        self._parser.req_count = number - 1
        self._head = bytearray()
        self._chunks: _ChunkedEnd | None = None
        self._missing_bytes = 0
        self._max_body_bytes = 0
        self.request: Any = None
        self.user: str | None = None
        self.error: Exception | None = None
        self.is_whole = False
        self.size = 0  # of what was fed
        self.body_size = 0  # of that, the body, as it was sent
        self.wants_page = False  # a person waits, and not a script
        self.wants_continue = False  # the client waits for our word before it sends the body

    @property
    def has_head(self) -> bool:
        return self.request is not None

    @property
    def cookies(self) -> str:
        return "; ".join(value for name, value in self._headers if name == "COOKIE")

    def forwarded_address(self, proxies: int) -> str | None:
        """Who sent it, as told by the outermost of so many proxies; None if they tell nothing."""
        told = ",".join(value for name, value in self._headers if name == "X-FORWARDED-FOR").split(",")
        return told[-proxies].strip() or None if 0 < proxies <= len(told) else None

    @property
    def body_so_far(self) -> bytes:
        """As it was sent; it is still there for who reads the request. For small bodies."""
        return bytes(self._received.buf.getvalue() + b"".join(self._received.pieces))

    @property
    def _headers(self) -> list[tuple[str, str]]:
        return self.request.headers if self.has_head else []

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self.has_head:
            self._received.pieces.append(data)
            self._feed_body(data)
            return
        searched = max(0, len(self._head) - 3)
        self._head += data
        if _may_be_parsed(self._head, searched):
            self._parse()

    def end(self) -> None:
        """The client will send no more. What is missing is found out by whoever reads the request."""
        if not self.has_head and not self.is_whole:
            self._parse()
        self.is_whole = True

    def read_body(self) -> None:
        """Decode a chunked body, before the application asks for it. Raises gunicorn's error if it cannot be
        decoded: the application would take that for an error of its own.
        """
        if self._chunks is not None:
            body = self.request.body.read(self._max_body_bytes + 1)
            if len(body) > self._max_body_bytes:
                self.request.force_close()  # the rest was not read
            self.request.body = io.BytesIO(body)

    def can_be_dropped(self) -> bool:
        """Whether nothing is lost if the client is gone and the request is not answered.

        A client that asks for the connection to be closed may have closed its own half of it already.
        """
        if self.error is not None or self.request is None:
            return False
        return self.request.method in ("GET", "HEAD") and not self.request.should_close()

    def rest(self) -> bytes:
        """What came after this request: the beginning of the next one."""
        if not self._parser.finish_body():
            return b""
        return bytes(self._received.take_buffered() + b"".join(self._received.pieces))

    def _parse(self) -> None:
        self._received.pieces.append(bytes(self._head))
        is_too_long = len(self._head) > MAX_HEAD_BYTES
        self.wants_page = b"text/html" in self._head
        self._head.clear()
        try:
            self.request = next(self._parser)
        except (NoMoreData, StopIteration):
            self.error = (
                LimitRequestHeaders(f"more than {MAX_HEAD_BYTES:,} bytes")
                if is_too_long
                else InvalidRequestLine("it broke off")
            )
        except Exception as error:  # whatever a parser may raise for what a stranger sends
            self.error = error
        if self.error is not None:
            self.is_whole = True
            return
        self._expect_body()

    def _expect_body(self) -> None:
        request, reader = self.request, self.request.body.reader
        self.user = self._user_of(self.cookies)
        self._max_body_bytes = MAX_BODY_BYTES_SIGNED_OUT if self.user is None else MAX_BODY_BYTES
        if isinstance(reader, ChunkedReader):
            self._chunks = _ChunkedEnd()
        else:
            self._missing_bytes = reader.length
        self._feed_body(self._received.buf.getvalue())
        if self._missing_bytes > self._max_body_bytes:
            self.is_whole = True  # the application refuses it by its length, and nobody reads it
            request.force_close()
        self.wants_continue = request._expected_100_continue and not self.is_whole and not self.body_size
        request._expected_100_continue = False  # so that gunicorn does not send it once more

    def _feed_body(self, data: bytes) -> None:
        self.body_size += len(data)
        if self._chunks is None:
            self._missing_bytes -= len(data)
            self.is_whole = self._missing_bytes <= 0
        else:
            self._chunks.feed(data)
            self.is_whole = (
                self._chunks.is_found or self.body_size > MAX_CHUNKED_OVERHEAD * self._max_body_bytes
            )
            if self._chunks.count > MAX_CHUNKS:
                self.error, self.is_whole = InvalidChunkSize(b"too many chunks"), True


class _Received(Unreader):  # type: ignore[misc]
    """What gunicorn's parser reads from, in place of a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: deque[bytes] = deque()

    def chunk(self, size_hint: int | None = None) -> bytes:
        return self.pieces.popleft() if self.pieces else b""


class _ChunkedEnd:
    """Finds the end of a chunked body. A malformed one ends where that shows: gunicorn's reader says what is
    wrong with it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0  # bytes of the chunk's data, and the line end after it
        self._is_in_trailers = False
        self.is_found = False
        self.count = 0  # of lines: one for each chunk and each trailer

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while not self.is_found and self.count <= MAX_CHUNKS and self._skip_data():
            end = self._buffer.find(b"\r\n")
            if end < 0:
                self.is_found = len(self._buffer) > MAX_CHUNK_LINE_BYTES
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._read_line(line)

    def _skip_data(self) -> bool:
        skipped = min(self._skip, len(self._buffer))
        del self._buffer[:skipped]
        self._skip -= skipped
        return not self._skip

    def _read_line(self, line: bytes) -> None:
        self.count += 1
        if self._is_in_trailers:
            self.is_found = not line
            return
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
        self.is_found = size < 0
        self._is_in_trailers = size == 0
        self._skip = size + 2 if size > 0 else 0


def _may_be_parsed(head: bytearray, searched: int) -> bool:
    """Whether the headers are whole, or it is clear already that they never will be.

    Lines that end in a bare newline, or what is not text, gunicorn's parser refuses at once.
    """
    is_text = head[:1].isalpha() or head[:1] in b"\r\n"
    if not is_text or len(head) > MAX_HEAD_BYTES or head.startswith(b"\r\n\r\n"):
        return True
    # RFC 9112 allows an empty line in front of a request.
    start = max(searched, 2 if head.startswith(b"\r\n") else 0)
    return head.find(b"\r\n\r\n", start) >= 0 or head.find(b"\n\n", searched) >= 0
