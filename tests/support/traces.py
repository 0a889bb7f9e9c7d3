"""Traces kept in memory, and what their spans say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agentapp.agents.tracing import TurnTraces
from agentapp.telemetry.otel import OtelTracer, new_provider

IDS = (
    "gen_ai.conversation.id",
    "agentapp.turn.id",
    "agentapp.request.id",
    "agentapp.tenant.id",
    "user.id",
)


class KeptSpans:
    """What was sent so far, by the real SDK."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer("http://127.0.0.1:9")
        provider = new_provider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer.use(provider)

    def traces(self, *, with_content: bool = False) -> TurnTraces:
        return TurnTraces(self.tracer, "demo", with_content=with_content)

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def by_trace(self) -> dict[int, list[ReadableSpan]]:
        found: dict[int, list[ReadableSpan]] = defaultdict(list)
        for span in self.all():
            found[span.context.trace_id].append(span)
        return found

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.all() if span.name == name]
        return found


def tree(spans: Iterable[ReadableSpan]) -> Any:
    """The names, as `(name, [what is below it])`, in the order in which they began."""
    below: dict[int | None, list[ReadableSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        below[span.parent and span.parent.span_id].append(span)

    def of(span: ReadableSpan) -> Any:
        children = [of(each) for each in below[span.context.span_id]]
        return (span.name, children) if children else span.name

    (root,) = below[None]
    return of(root)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def error_of(span: ReadableSpan) -> Any:
    """Its kind of error; None if it has not failed."""
    kind = attributes_of(span).get("error.type")
    assert (span.status.status_code is StatusCode.ERROR) == (kind is not None)
    return kind


def everything_in(spans: Iterable[ReadableSpan]) -> str:
    return "\n".join(span.to_json() for span in spans)
