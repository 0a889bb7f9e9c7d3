"""What is wrong with a request that could not be read, and a request that stands in for it."""

from __future__ import annotations

from typing import Any

from gunicorn.http import errors

from agentapp.server.incoming_request import IncomingRequest


class TooSlow(Exception):
    """The request did not come in time."""


# The first that fits. Any other error of the parser is a 400 too: also an unknown transfer coding, which
# gunicorn would answer with 501, because it is the client who has to change something.
PROBLEMS: tuple[tuple[type[Exception], int, str], ...] = (
    (TooSlow, 408, "The request did not come in time."),
    (errors.LimitRequestLine, 414, "The address is too long."),
    (errors.LimitRequestHeaders, 431, "The headers of the request are too large."),
    (errors.ExpectationFailed, 417, "This server expects nothing but 100-continue."),
    (errors.InvalidChunkSize, 400, "The chunks of the request are malformed."),
    (errors.ChunkMissingTerminator, 400, "The chunks of the request are malformed."),
    (errors.InvalidChunkExtension, 400, "The chunks of the request are malformed."),
    (errors.NoMoreData, 400, "The request broke off."),
    (Exception, 400, "The request could not be understood."),
)


def problem_with(error: Exception) -> tuple[int, str]:
    """Status and sentence. What was sent is not repeated: it may be anything."""
    return next((status, words) for kind, status, words in PROBLEMS if isinstance(error, kind))


def stand_in_for(incoming: IncomingRequest, cfg: Any, client: Any) -> Any:
    """A request that can be answered, by a page or as JSON, in place of one that could not be read."""
    accept = b"text/html" if incoming.wants_page else b"application/json"
    stand_in = IncomingRequest(cfg, client, 1)
    stand_in.feed(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: " + accept + b"\r\n\r\n"
    )
    return stand_in.request
