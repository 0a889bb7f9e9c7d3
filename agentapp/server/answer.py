"""The answer to one request, written to its connection with as few calls as possible."""

from __future__ import annotations

from typing import Any

from gunicorn.http.wsgi import Response

from agentapp.server.connection import Connection


class Answer(Response):  # type: ignore[misc]
    """An answer of known length is sent in one piece, and no thread waits for a client that is slow to take
    it. A stream is sent piece by piece, by the thread that it has anyway.
    """

    def __init__(self, request: Any, sock: Any, cfg: Any, connection: Connection) -> None:
        super().__init__(request, sock, cfg)
        self.headers_sent = False
        self._connection = connection
        self._pieces: list[bytes] = []

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
            self._send(may_wait=False)

    def close(self) -> None:
        self.send_headers()
        if self.chunked:
            self._pieces.append(b"0\r\n\r\n")
        self._send(may_wait=True)

    def _send(self, *, may_wait: bool) -> None:
        data, self._pieces = b"".join(self._pieces), []
        self._connection.send(data, may_wait=may_wait)
