"""What a trace is made of, as the parts see it: spans, each begun below one that is handed in. There is no
"current" span: a turn may be pulled by one thread after the other, and none must find another turn's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

Attributes = Mapping[str, str | bool | int | float | tuple[str, ...]]

log = logging.getLogger(__name__)


class Span(Protocol):
    """One that is never ended is never sent."""

    def child(self, name: str, attributes: Attributes, *, is_call: bool = False) -> Span:
        """A span below this one, which begins now. ``is_call``: it is a call of another service."""

    def add(self, attributes: Attributes) -> None: ...

    def end(self, error: str | None = None, ended_ns: int | None = None) -> None:
        """With the kind of error, if it failed. Once."""


class Tracer(Protocol):
    def start(self) -> None:
        """Call it in each worker, after the fork."""

    def begin(self, name: str, attributes: Attributes, began_ns: int) -> Span | None:
        """The first span of a new trace. None if this trace is not to be kept."""

    def close(self) -> None:
        """Send what is left, but do not wait for long."""


def find_tracer(endpoint: str) -> Tracer | None:
    """What sends spans there. None, with a line in the log, if what that takes is not installed."""
    try:
        module = import_module("agentapp.telemetry.otel")
    except ImportError as error:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s is missing: no traces without "
            "install agentapp with its extra otel",
            error.name,
        )
        return None
    return cast(Tracer, module.OtelTracer(endpoint))
