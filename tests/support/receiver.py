"""A receiver of the webhook: it answers as it is told to, and keeps what it was sent."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

CERTIFICATE = Path(__file__).parent / "localhost.pem"


class Sent(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def alert(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.body)["data"]
        return data


class Receiver:
    """``answers`` are for the next requests: a status, "hang", or "drip", a byte of an answer now and then,
    for ever. All others are taken.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: list[Sent] = []
        self.answers: list[int | str] = []
        self.has_asked, self.over = threading.Semaphore(0), threading.Event()


class _Server(ThreadingHTTPServer):
    receiver: Receiver


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = receiver.answers.pop(0) if receiver.answers else 204
        receiver.sent.append(Sent(self.path, headers, body))
        receiver.has_asked.release()
        if answer == "hang":
            receiver.over.wait(30)
        elif answer == "drip":
            self._drip()
        else:
            self.send_response(int(answer))
            self.send_header("Location", "/elsewhere")
            self.end_headers()

    def _drip(self) -> None:
        try:
            while not self.server.receiver.over.wait(0.02):
                self.wfile.write(b"H")
        except OSError:
            pass

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def receiving(*, tls: bool = False) -> Iterator[Receiver]:
    server = _Server(("127.0.0.1", 0), _Request)
    server.daemon_threads = False
    scheme = "http"
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - a client that goes away at once
        scheme = "https"
    server.receiver = Receiver(f"{scheme}://127.0.0.1:{server.server_port}/alerts?key=in-the-address")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield server.receiver
    finally:
        server.receiver.over.set()
        server.shutdown()
        serving.join()
        server.server_close()
