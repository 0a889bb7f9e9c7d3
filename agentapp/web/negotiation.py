"""Which form of answer a request asks for: a page for a person, or something for a script."""

from __future__ import annotations

from flask import request

from agentapp.web.parts import this_request

EVENTS = "text/event-stream"
JSON = "application/json"
PAGE = "text/html"


def wants_page() -> bool:
    """Browsers ask for text/html by name. Scripts ask for something else, or accept anything."""
    return answer_kind() == PAGE and PAGE in request.accept_mimetypes.values()


def answer_kind() -> str:
    """The form of answer that is asked for. A client that accepts anything gets the same as a plain form."""
    request = this_request()
    asked = request.environ.get("HTTP_ACCEPT")
    if asked in (EVENTS, JSON):  # as most scripts do, so that nothing is left to weigh up
        return str(asked)
    return request.accept_mimetypes.best_match([PAGE, EVENTS, JSON], default=PAGE)
