"""The answer to one request, written to its connection with as few calls as possible."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gunicorn.http.wsgi import Response

from agentapp.server.connection import ClientGone, Connection
from agentapp.server.limits import MAX_BEHIND_BYTES


class Answer(Response):  # type: ignore[misc]
    """An answer of known length is sent in one piece, and no thread waits for a client that is slow to take
    it. A stream is sent piece by piece, by the thread that it has anyway; the application may also send
    pieces by `send_now`, in the middle of making the next one.
    """

    def __init__(self, request: Any, sock: Any, cfg: Any, connection: Connection) -> None:
        super().__init__(request, sock, cfg)
        self.headers_sent = False
        self._connection = connection
        self._pieces: list[bytes] = []
        self._no_thread_waits = self._has_ended = False

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        self.headers_sent = True
        lines = [*self.default_headers(), *(f"{name}: {value}\r\n" for name, value in self.headers), "\r\n"]
        self._pieces.append("".join(lines).encode("latin-1"))

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            self._pieces += (b"%X\r\n" % len(data), data, b"\r\n")
        else:
            self._pieces.append(data)
        if self.response_length is None:
            self._send(may_wait=self._no_thread_waits)

    def send_now(self, piece: bytes) -> None:
        """Send a piece of a stream, from within the application. If the client does not take it, the piece
        waits and no thread does; a client that is too far behind is given up.
        """
        self._no_thread_waits = True
        connection = self._connection
        if connection.has_unsent:
            connection.send(b"", may_wait=True)
            if connection.unsent_bytes > MAX_BEHIND_BYTES:
                self.end_now()
                raise ClientGone("the client takes too little of its stream")
        self.write(piece)

    def end_now(self) -> None:
        """Nothing more comes, though the thread is not done yet. The connection is not kept: a client that
        used it again would wait for that thread.
        """
        self.force_close()
        with suppress(ClientGone):
            self.close()
        self._connection.end_sending()

    def close(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self.send_headers()
        if self.chunked:
            self._pieces.append(b"0\r\n\r\n")
        self._send(may_wait=True)

    def _send(self, *, may_wait: bool) -> None:
        data, self._pieces = b"".join(self._pieces), []
        self._connection.send(data, may_wait=may_wait)
