"""Traces of a started server, sent over HTTP to a collector that is there."""

from __future__ import annotations

from pathlib import Path

from tests.support.collector import collector
from tests.support.databases import migrated_in
from tests.support.http_client import Visitor
from tests.support.server import server
from tests.support.server_users import OFF, add_people
from tests.support.users import PASSWORD


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
