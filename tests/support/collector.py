"""A local collector that takes traces over HTTP and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """``status`` is what it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 200
        self.received: list[tuple[str, ExportTraceServiceRequest]] = []
        super().__init__(("127.0.0.1", 0), _Receiver)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        resources = [each for _, request in self.received for each in request.resource_spans]
        return [span for each in resources for scope in each.scope_spans for span in scope.spans]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()
