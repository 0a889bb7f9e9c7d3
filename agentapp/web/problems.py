"""Errors as answers: one table of statuses, one shape for scripts, one page for people, the same words."""

from __future__ import annotations

import logging
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, g, json, redirect, render_template, request
from flask_wtf.csrf import CSRFError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from agentapp import errors
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import request_id

# code -> status, title, seconds after which trying again makes sense if the error itself does not know
TABLE = MappingProxyType(
    {
        "bad-request": (400, "That did not work", None),
        "wrong-password": (401, "Not signed in", None),
        "login-required": (401, "Sign in first", None),
        "csrf": (403, "This page is out of date", None),
        "not-found": (404, "Not found", None),
        "turn-in-progress": (409, "Still answering", 2),
        "message-too-long": (413, "Too long", None),
        "invalid-message": (422, "This message cannot be sent", None),
        "idempotency-mismatch": (422, "Sent before with another text", None),
        "rate-limited": (429, "Too fast", 5),
        "budget-exhausted": (429, "The limit is reached", 60),
        "internal": (500, "Something went wrong", None),
        "turn-failed": (500, "Something went wrong", None),
        "out-of-steps": (502, "No answer found", None),
        "provider-failed": (502, "The model failed", None),
        "breaker-open": (503, "Paused", 30),
        "busy": (503, "Busy", 2),
        "turn-interrupted": (503, "The server is restarting", 2),
        "storage-unavailable": (503, "The database is away", 5),
        "provider-timeout": (504, "The model took too long", None),
    }
)

log = logging.getLogger(__name__)


def init_app(app: Flask) -> None:
    app.register_error_handler(errors.AgentappError, _ours)
    app.register_error_handler(CSRFError, _csrf)
    app.register_error_handler(RequestEntityTooLarge, _too_large)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def status_of(error: errors.AgentappError) -> int:
    return TABLE[error.code][0]


def problem_of(error: errors.AgentappError) -> dict[str, Any]:
    return problem(error.code, str(error), **more(error))


def problem(code: str, detail: str, **extra: Any) -> dict[str, Any]:
    """The body of every error answer."""
    _, title, retry_after = TABLE[code]
    return {
        "code": code,
        "title": title,
        "detail": detail,
        "scope": None,
        "retry_after": retry_after,
        **extra,
    }


def problem_answer(body: dict[str, Any], status: int | None = None) -> Response:
    status = TABLE[body["code"]][0] if status is None else status
    if wants_page():
        answer = Response(render_template("problem.html", problem=body, status=status), status)
    else:
        answer = Response(json.dumps(body), status, mimetype="application/problem+json")
    return with_retry_after(answer, body)


def with_retry_after(answer: Response, body: dict[str, Any]) -> Response:
    """The answer, with the header that says when to come back, if the body says it."""
    if body["retry_after"] is not None:
        answer.headers["Retry-After"] = str(body["retry_after"])
    return answer


def _ours(error: errors.AgentappError) -> Any:
    if isinstance(error, errors.LoginRequired) and wants_page():
        here = request.full_path.rstrip("?") if request.method == "GET" else ""
        return redirect("/login" + (f"?{urlencode({'next': here})}" if here else ""), 303)
    if isinstance(error, errors.IsolationError):
        return _unexpected(error)
    if isinstance(error, errors.StorageUnavailable):
        log.error("request %s: storage: %s", request_id(), error.__cause__ or error)
    return problem_answer(problem_of(error))


def more(error: errors.AgentappError) -> dict[str, Any]:
    """What an answer tells of this error beyond what all of them tell."""
    match error:
        case errors.TurnInProgress():
            where = f"/chat/{(request.view_args or {}).get('session_id')}/turns/{error.turn_id}/events"
            return {"turn_id": error.turn_id, "turn_url": where}
        case errors.GuardrailRefused():
            wait = max(1, ceil(error.retry_after))
            return {"scope": error.scope, "limit": error.limit, "used": error.used, "retry_after": wait}
    return {}


def _csrf(error: CSRFError) -> Any:
    if request.blueprint in ("chat", "turns") and "user" not in g:
        # The login ended and took its token with it: that is what the person has to be told.
        return _ours(errors.LoginRequired("Sign in first."))
    return problem_answer(
        problem("csrf", "The form was too old or came from elsewhere. Reload the page and send again.")
    )


def _too_large(error: RequestEntityTooLarge) -> Response:
    return problem_answer(problem("message-too-long", "What was sent is larger than this server takes."))


def _http(error: HTTPException) -> Any:
    """Werkzeug's own errors, in our shape. A redirect is an exception too, and passes through."""
    status = error.code or 500
    if status < 400:
        return error.get_response()
    code = "not-found" if status == 404 else "internal" if status >= 500 else "bad-request"
    detail = "There is nothing here." if status == 404 else (error.description or HTTPStatus(status).phrase)
    answer = problem_answer(problem(code, detail), status)
    if status == 405:
        answer.headers["Allow"] = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    return answer


def _unexpected(error: Exception) -> Response:
    where = f"{request.method} {request.path}"
    log.error("request %s: unexpected error on %s", request_id(), where, exc_info=error)
    return problem_answer(problem("internal", "Something went wrong on our side. It was written to the log."))
