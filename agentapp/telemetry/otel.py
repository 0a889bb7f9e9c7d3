"""Spans by way of the OpenTelemetry SDK, which sends them from a thread of its own in each worker.

What is not said here the SDK reads from its own variables: headers, time-out, certificates, compression,
which share of the traces is kept, how many spans wait at most.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from agentapp import __version__
from agentapp.events import storable
from agentapp.telemetry.spans import Attributes

PATH = "/v1/traces"
# The last release that had the conventions for GenAI; since then they are on their own, and have none yet.
CONVENTIONS = "https://opentelemetry.io/schemas/1.41.0"
CLOSE_SECONDS = 3.0  # for what has not been sent when the worker ends

log = logging.getLogger(__name__)


class OtelTracer:
    """Before `start` no trace is kept and nothing opened: threads and connections do not survive a fork."""

    def __init__(self, endpoint: str) -> None:
        self._url = endpoint.rstrip("/") + PATH
        self._provider: TracerProvider | None = None
        self._exporter: Any = None  # some of its methods have no types
        self._tracer: trace.Tracer | None = None

    def start(self) -> None:
        self._exporter = OTLPSpanExporter(endpoint=self._url)
        provider = new_provider()
        provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self.use(provider)

    def use(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("agentapp", __version__, schema_url=CONVENTIONS)

    def begin(self, name: str, attributes: Attributes, began_ns: int) -> OtelSpan | None:
        if self._tracer is None:
            return None
        # An empty context: what this thread has done before is no parent of it.
        span = self._tracer.start_span(name, Context(), attributes=_sendable(attributes), start_time=began_ns)
        return OtelSpan(self._tracer, span) if span.is_recording() else None

    def close(self) -> None:
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is None:
            return
        # The SDK would wait for half a minute if nobody answers there.
        shut_down: Callable[[], object] = provider.shutdown
        closing = threading.Thread(target=shut_down, name="agentapp-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive() and self._exporter is not None:
            log.warning("the last traces could not be sent within %g s", CLOSE_SECONDS)
            self._exporter.shutdown()  # so that it does not try again


def new_provider() -> TracerProvider:
    """The environment may name the service. It is closed by the worker, and not at the interpreter's exit."""
    named = Resource({"service.name": "agentapp", "service.version": __version__})
    return TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)


class OtelSpan:
    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer, self._span = tracer, span

    def child(self, name: str, attributes: Attributes, *, is_call: bool = False) -> OtelSpan:
        parent = trace.set_span_in_context(self._span, Context())
        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        span = self._tracer.start_span(name, parent, kind, attributes=_sendable(attributes))
        return OtelSpan(self._tracer, span)

    def add(self, attributes: Attributes) -> None:
        self._span.set_attributes(_sendable(attributes))

    def end(self, error: str | None = None, ended_ns: int | None = None) -> None:
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(ended_ns)


def _sendable(attributes: Attributes) -> Mapping[str, Any]:
    """A provider may send half a surrogate pair, which the SDK could not write as UTF-8."""
    return {name: _writable(value) for name, value in attributes.items()}


def _writable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_writable, value))
    return storable(value) if isinstance(value, str) and not value.isascii() else value
