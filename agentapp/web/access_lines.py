"""One line in the log for each request: how it was answered. The ids are those of the scope that is bound."""

from __future__ import annotations

import logging
import re
import time

from flask import Request, Response, g

from agentapp.server.limits import UNREADABLE
from agentapp.server.refused_lines import method_in_log
from agentapp.web.parts import this_request

log = logging.getLogger(__name__)


def note_status(response: Response) -> Response:
    g.status = response.status_code
    return response


def write_access_line(began: float, *, is_quiet: bool) -> None:
    """``is_quiet`` is for requests that come all the time and tell nothing, such as health checks. A stream
    has been answered when its first byte is about to be sent; how it ends, the turn's own line tells.
    """
    level = logging.DEBUG if is_quiet else logging.INFO
    if not log.isEnabledFor(level):
        return
    request = this_request()
    is_readable = UNREADABLE not in request.environ
    told = {
        "method": method_in_log(request.method) if is_readable else "-",
        "route": route_of(request) if is_readable else "-",
        "status": g.get("status", 500),
        "code": g.get("problem"),
        "ms": round((time.perf_counter() - began) * 1000, 1),
    }
    if told["status"] == 404:
        told |= {"session_id": "", "turn_id": ""}  # of nothing that there is: anybody may have made them up
    elif turn_id := g.get("turn_id") or _turn_in_address(request):
        told["turn_id"] = turn_id
    log.log(level, "request", extra=told)


def route_of(request: Request) -> str:
    """The rule, such as ``/chat/<session_id>``. Never the address itself: it may be anything."""
    rule = request.url_rule
    return "-" if rule is None else re.sub(r"<\w+:", "<", rule.rule)


def _turn_in_address(request: Request) -> str | None:
    """Of somebody who is signed in; a stranger may have written anything there."""
    found: str | None = (request.view_args or {}).get("turn_id") if "user" in g else None
    return found
