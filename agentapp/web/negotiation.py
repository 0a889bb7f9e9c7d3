"""Who is asking: a person's browser, or a script?"""

from __future__ import annotations

from flask import request

EVENTS = "text/event-stream"
JSON = "application/json"
PAGE = "text/html"


def wants_page() -> bool:
    """Browsers name text/html; scripts name something else, or take anything."""
    return answer_kind() == PAGE and PAGE in request.accept_mimetypes.values()


def answer_kind() -> str:
    """The form of answer asked for. A client that takes anything gets what a plain form would get."""
    return request.accept_mimetypes.best_match([PAGE, EVENTS, JSON], default=PAGE)
