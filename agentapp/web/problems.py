"""Errors as answers: one table of statuses, JSON for scripts, a page for people. Both say the same words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import NamedTuple, TypedDict, Unpack
from urllib.parse import urlencode

from flask import Flask, Response, g, json, redirect, render_template, request
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from agentapp import errors
from agentapp.isolation import UserScope
from agentapp.logs import described
from agentapp.telemetry.refusals import count_refusal
from agentapp.web.access_lines import route_of
from agentapp.web.audit_notes import note_denied_lookup
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts, this_request


class ProblemKind(NamedTuple):
    status: int
    title: str
    retry_after: int | None = None  # seconds; used if the error itself does not say when to try again


class ProblemDetails(TypedDict, total=False):
    """The fields of a problem that depend on the error."""

    scope: str | None
    retry_after: int | None
    limit: int
    used: int
    turn_id: str
    turn_url: str
    request_id: str


class Problem(ProblemDetails):
    """The body of every error answer."""

    code: str
    title: str
    detail: str


TABLE: Mapping[str, ProblemKind] = MappingProxyType(
    {
        "bad-request": ProblemKind(400, "That did not work"),
        "wrong-password": ProblemKind(401, "Not signed in"),
        "login-required": ProblemKind(401, "Sign in first"),
        "csrf": ProblemKind(403, "This page is out of date"),
        "forbidden": ProblemKind(403, "Not for you"),
        "not-found": ProblemKind(404, "Not found"),
        "turn-in-progress": ProblemKind(409, "Still answering", 2),
        "message-too-long": ProblemKind(413, "Too long"),
        "invalid-message": ProblemKind(422, "This message cannot be sent"),
        "idempotency-mismatch": ProblemKind(422, "Sent before with another text"),
        "rate-limited": ProblemKind(429, "Too fast", 5),
        "budget-exhausted": ProblemKind(429, "The limit is reached", 60),
        "internal": ProblemKind(500, "Something went wrong"),
        "turn-failed": ProblemKind(500, "Something went wrong"),
        "out-of-steps": ProblemKind(502, "No answer found"),
        "provider-failed": ProblemKind(502, "The model failed"),
        "breaker-open": ProblemKind(503, "Paused", 30),
        "busy": ProblemKind(503, "Busy", 2),
        "turn-interrupted": ProblemKind(503, "The server is restarting", 2),
        "draining": ProblemKind(503, "The server is restarting", 2),
        "storage-unavailable": ProblemKind(503, "Nothing can be stored right now", 5),
        "storage-timeout": ProblemKind(503, "The database took too long", 5),
        "provider-timeout": ProblemKind(504, "The model took too long"),
        "storage-full": ProblemKind(507, "No room left"),
    }
)

log = logging.getLogger(__name__)


def init_app(app: Flask) -> None:
    app.register_error_handler(errors.AgentappError, _answer_own_error)
    app.register_error_handler(CSRFError, _answer_csrf_error)
    app.register_error_handler(RequestEntityTooLarge, _answer_too_large)
    app.register_error_handler(HTTPException, _answer_http_error)
    app.register_error_handler(Exception, _answer_unexpected_error)


def status_of(error: errors.AgentappError) -> int:
    return TABLE[error.code].status


def problem_of(error: errors.AgentappError) -> Problem:
    return problem(error.code, str(error), **_details_of(error))


def problem(code: str, detail: str, **details: Unpack[ProblemDetails]) -> Problem:
    kind = TABLE[code]
    return {
        "code": code,
        "title": kind.title,
        "detail": detail,
        "scope": None,
        "retry_after": kind.retry_after,
        **details,
    }


def problem_answer(body: Problem, status: int | None = None) -> Response:
    """``status`` is for errors that have another one than the table gives for their code."""
    status = TABLE[body["code"]].status if status is None else status
    if wants_page():
        answer = Response(render_template("problem.html", problem=body, status=status), status)
    else:
        answer = Response(json.dumps(body), status, mimetype="application/problem+json")
    return _with_retry_after(answer, body)


def answer_with_page(page: str, error: errors.AgentappError) -> Response:
    """The answer to a request that failed, as one of our pages that tells why."""
    _count_if_refused(error)
    return _with_retry_after(Response(page, status_of(error)), problem_of(error))


def _with_retry_after(answer: Response, body: Problem) -> Response:
    """Add the header that says when to come back, if the body says it. The log is to have the code too."""
    g.problem = body["code"]
    if body["retry_after"] is not None:
        answer.headers["Retry-After"] = str(body["retry_after"])
    return answer


def _count_if_refused(error: errors.AgentappError) -> None:
    """Each refusal of a guardrail is answered here, but for two: see `web.overload` and `storage.notes`."""
    if isinstance(error, errors.GuardrailRefused):
        scope = g.get("scope")
        count_refusal(parts().telemetry, error, scope.tenant_id if isinstance(scope, UserScope) else "")


def _answer_own_error(error: errors.AgentappError) -> ResponseReturnValue:
    if isinstance(error, errors.LoginRequired) and wants_page():
        here = request.full_path.rstrip("?") if request.method == "GET" else ""
        return redirect("/login" + (f"?{urlencode({'next': here})}" if here else ""), 303)
    if isinstance(error, errors.IsolationError):
        return _answer_unexpected_error(error)
    if isinstance(error, errors.NotFound):
        note_denied_lookup()
    if isinstance(error, errors.StorageUnavailable) and not isinstance(error, errors.DiskFull):
        log.error("storage: %s", _reason(error))
    _count_if_refused(error)
    return problem_answer(problem_of(error))


def _reason(error: errors.StorageUnavailable) -> str:
    """The database's first line and the statement. The lines after the first may quote a row."""
    cause = error.__cause__ or error
    reason, statement = str(cause).partition("\n")[0], getattr(cause, "statement", None)
    return f"{reason} [SQL: {statement}]" if statement else reason


def _details_of(error: errors.AgentappError) -> ProblemDetails:
    match error:
        case errors.TurnInProgress():
            url = f"/chat/{(request.view_args or {}).get('session_id')}/turns/{error.turn_id}/events"
            return {"turn_id": error.turn_id, "turn_url": url}
        case errors.StorageFull():
            return {"scope": error.scope, "limit": error.limit, "used": error.used}
        case errors.GuardrailRefused():
            wait = max(1, ceil(error.retry_after))
            return {"scope": error.scope, "limit": error.limit, "used": error.used, "retry_after": wait}
    return {}


def _answer_csrf_error(error: CSRFError) -> ResponseReturnValue:
    if request.blueprint in ("chat", "turns") and "user" not in g:
        # The login has ended, and the token with it. The person has to be told about the login.
        return _answer_own_error(errors.LoginRequired("Sign in first."))
    return problem_answer(
        problem("csrf", "The form was too old or came from elsewhere. Reload the page and send again.")
    )


def _answer_too_large(error: RequestEntityTooLarge) -> Response:
    return problem_answer(problem("message-too-long", "What was sent is larger than this server takes."))


def _answer_http_error(error: HTTPException) -> ResponseReturnValue:
    """Werkzeug's own errors in the same form as ours. A redirect is an exception too, and stays as it is."""
    status = error.code or 500
    if status < 400:
        return error.get_response()
    code = "not-found" if status == 404 else "internal" if status >= 500 else "bad-request"
    detail = "There is nothing here." if status == 404 else (error.description or HTTPStatus(status).phrase)
    answer = problem_answer(problem(code, detail), status)
    if status == 405:
        answer.headers["Allow"] = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    return answer


def _answer_unexpected_error(error: Exception) -> Response:
    log.error("unexpected error: %s", described(error), extra={"route": route_of(this_request())})
    return problem_answer(problem("internal", "Something went wrong on our side. It was written to the log."))
