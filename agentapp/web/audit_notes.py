"""What requests leave in the audit log beside what their transactions write: it is counted, and stored later.

See `storage.audit_tallies`: none of it makes a request slower, or makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Request, g, request
from werkzeug.exceptions import HTTPException

from agentapp.errors import BadRequest, GuardrailRefused, WrongPassword
from agentapp.isolation import Scope
from agentapp.storage.names import normalise_name
from agentapp.web.incoming import turn_field
from agentapp.web.parts import parts, this_request

AN_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
TURNS_IN_QUERY, TURNS_IN_BODY = ("version", "before", "edit"), ("replaces", "after")


@contextmanager
def password_tried(name: str, browser: str | None = None) -> Iterator[None]:
    """Goes around the check of a password: see `SignIns.counted`."""
    tallies = parts().audit_tallies
    try:
        with parts().sign_ins.counted(normalise_name(name), request.remote_addr or "", browser):
            yield
    except WrongPassword:
        tallies.add_sign_in(g.scope, "sign-in-failed", name)
        raise
    except GuardrailRefused:
        tallies.add_sign_in(g.scope, "sign-in-throttled", name)
        raise


def note_denied_lookup() -> None:
    """The answer is that there is no such thing. If the user asked for a chat or a turn, that is noted,
    whether or not somebody else has it: nobody looks.
    """
    scope = g.get("scope")
    if isinstance(scope, Scope):
        parts().audit_tallies.add(scope, "lookup-denied", _asked_for(this_request(), scope))


def note_export(scope: Scope, format: str) -> None:
    parts().audit_tallies.add(scope, "chat-exported", f"session:{scope.session_id}", format)


def _asked_for(request: Request, scope: Scope) -> str:
    """The turn, if there is one in the address, the query or the body; or else the chat."""
    turn_id = (request.view_args or {}).get("turn_id") or next(_turns_named(request), "")
    return f"turn:{turn_id}" if turn_id else f"session:{scope.session_id}"


def _turns_named(request: Request) -> Iterator[str]:
    named = [request.args.get(name, "") for name in TURNS_IN_QUERY]
    if request.method == "POST":
        named += [_turn_in_body(name) for name in TURNS_IN_BODY]
    return (each for each in named if AN_ID.fullmatch(each))


def _turn_in_body(name: str) -> str:
    try:
        return turn_field(name) or ""
    except (BadRequest, HTTPException):  # the second is about a body that cannot be read
        return ""
