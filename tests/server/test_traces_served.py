"""Traces of a started server, sent over HTTP to a collector that is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.databases import migrated_in
from tests.support.http_client import Visitor
from tests.support.server import server
from tests.support.server_users import OFF, add_people
from tests.support.users import PASSWORD


class Collector(ThreadingHTTPServer):
    """What an OTLP collector is to a client."""

    daemon_threads = True

    def __init__(self) -> None:
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
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
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


def test_a_worker_that_ends_has_sent_the_traces_of_all_its_turns(
    tmp_path: Path, sqlite_template: Path
) -> None:
    with migrated_in(tmp_path, "sqlite", sqlite_template) as url, collector() as there:
        add_people(url, ["ann"])
        env = OFF | {
            "AGENTAPP_DATABASE_URL": url,
            "AGENTAPP_DEMO_DELAY": "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": there.url,
            "OTEL_SERVICE_NAME": "chat",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",  # nothing is sent before the worker ends
        }
        with server(tmp_path, env=env, workers=2) as running:
            ann = Visitor(running.url)
            ann.sign_in("ann", PASSWORD)
            chat = ann.new_chat()
            for _ in range(3):
                assert ann.send(chat, "what is 2 + 3?").status == 200
            assert there.received == []
            running.stop()
            assert running.output().count("\n") <= 2, running.output()
    assert {path for path, _ in there.received} == {"/v1/traces"}
    named = [each.resource.attributes for _, request in there.received for each in request.resource_spans]
    assert {a.value.string_value for each in named for a in each if a.key == "service.name"} == {"chat"}
    roots = [span for span in there.spans() if not span.parent_span_id]
    assert [span.name for span in roots] == ["invoke_workflow turn"] * 3
    assert len({span.trace_id for span in there.spans()}) == 3
    for span in there.spans():
        ids = {each.key: each.value.string_value for each in span.attributes}
        assert ids["gen_ai.conversation.id"] == chat
