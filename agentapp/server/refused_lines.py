"""Lines in the log for requests that are refused without a thread, and so without the application."""

from __future__ import annotations

import logging
from types import MappingProxyType

from agentapp.server.connection import Connection

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
LINES_AT_ONCE = 20  # between two sweeps of the main loop
BUSY = MappingProxyType({"status": 503, "code": "busy"})

log = logging.getLogger(__name__)


class RefusedLines:
    """Each has a line of its own. In a flood, where lines would cost more than the refusals, only the first
    few have one, and the rest is counted.
    """

    def __init__(self) -> None:
        self._lines = self._more = 0

    def refused(self, connection: Connection, now: float) -> None:
        if self._lines >= LINES_AT_ONCE:
            self._more += 1
            return
        self._lines += 1
        told = {
            **BUSY,
            "method": method_in_log(getattr(connection.incoming.request, "method", "")),
            "route": "-",
            "ms": round((now - connection.since) * 1000, 1),
            "user_id": connection.user,
        }
        log.info("request", extra=told)

    def sweep(self) -> None:
        if self._more:
            log.info("requests refused without a line of their own", extra={**BUSY, "count": self._more})
        self._lines = self._more = 0


def method_in_log(method: str) -> str:
    """A client may send any word as a method."""
    return method if method in METHODS else "-"
