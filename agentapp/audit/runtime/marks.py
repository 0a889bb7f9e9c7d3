"""Marks: each request gets a unique text. Finding it later proves that the request's data is still there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HEADER = "X-Agentapp-Canary"
ARGUMENT = "agentapp_canary"
ENTRY = "agentapp.canary"

_PREFIX = "agentappcanary"
_PREFIX_BYTES = _PREFIX.encode()
_MARK = re.compile(_PREFIX + r"[0-9a-f]{24}")

current: ContextVar[str | None] = ContextVar("agentapp_canary_current", default=None)
_next: ContextVar[str | None] = ContextVar("agentapp_canary_next", default=None)


def canary() -> str:
    """The mark of the current request or, outside of one, of the next request from this thread.

    This is enough for a test client that runs the app in this thread. For a server in another process, also
    send the mark in the header `HEADER`, so that the server can attribute it.
    """
    mark = current.get() or _next.get()
    if mark is None:
        mark = _new()
        _next.set(mark)
    return mark


def plant(environ: WSGIEnvironment) -> str:
    """Put a mark into the header, the query and the environ. A mark sent with the request is kept."""
    header = "HTTP_" + HEADER.upper().replace("-", "_")
    sent = environ.get(header)
    mark = sent if type(sent) is str and _MARK.fullmatch(sent) else _next.get() or _new()
    _next.set(None)
    environ[header] = environ[ENTRY] = mark
    query = environ.get("QUERY_STRING") or ""
    environ["QUERY_STRING"] = f"{query}{'&' if query else ''}{ARGUMENT}={mark}"
    return mark


def marks_in(items: Sequence[Any]) -> list[tuple[int, str]]:
    """The marks in all items that are texts or bytes, each with the position of the item."""
    found: list[tuple[int, str]] = []
    for position, item in enumerate(items):
        cls = type(item)
        if cls is str or issubclass(cls, str):
            if not str.__contains__(item, _PREFIX):
                continue
            text = item
        elif issubclass(cls, bytes) and bytes.__contains__(item, _PREFIX_BYTES):
            text = bytes.decode(item, "latin-1")
        else:
            continue
        found.extend((position, mark) for mark in dict.fromkeys(_MARK.findall(text)))
    return found


def _new() -> str:
    return _PREFIX + secrets.token_hex(12)
