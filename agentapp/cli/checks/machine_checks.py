"""What the machine lets a server have, and what is installed on it."""

from __future__ import annotations

import resource
from http.client import HTTPException
from importlib.util import find_spec
from urllib.parse import urlsplit

from agentapp.cli.checks.asking import ask
from agentapp.cli.checks.line import Line, do, note, ok
from agentapp.config import Settings
from agentapp.server.options import ServerOptions, open_files_of


def check_open_files(server: ServerOptions) -> Line:
    """The server raises the soft limit by itself, as far as the hard one."""
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_of(server.threads)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return ok("open files", f"{needed:,} a worker are needed, and allowed")
    text = f"{needed:,} a worker are needed, and {allowed:,} allowed"
    return do("open files", f"{text}: LimitNOFILE= of systemd, or `ulimit -Hn`; or less AGENTAPP_THREADS")


def check_traces(settings: Settings) -> Line:
    """An export of no spans shows whether somebody takes them."""
    endpoint = settings.otlp_endpoint
    if endpoint is None:
        return ok("traces", "none: OTEL_EXPORTER_OTLP_ENDPOINT is not set")
    if find_spec("opentelemetry.exporter") is None or find_spec("opentelemetry.sdk") is None:
        text = "OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is sent: install agentapp with its extra otel"
        return do("traces", text)
    try:
        status = ask(
            urlsplit(endpoint), "POST", "/v1/traces", {"Content-Type": "application/x-protobuf"}
        ).status
    except (OSError, HTTPException, ValueError) as error:
        text = f"{endpoint} does not speak OTLP over HTTP ({type(error).__name__}); its port is mostly 4318"
        return do("traces", text)
    if status in (401, 403):
        return note("traces", f"{endpoint} wants to know who asks: OTEL_EXPORTER_OTLP_HEADERS can tell it")
    if status >= 300:
        return do("traces", f"{endpoint} takes no traces ({status}): is it a collector of OpenTelemetry?")
    words = "with what people and models say" if settings.trace_content else "without words of anybody"
    return ok("traces", f"one a turn, {words}, to {endpoint}")
