"""The one pair of hooks that opens a request's scope and closes everything that was opened under it."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from flask import Flask, Request, g

from agentapp.errors import BadRequest, Busy, LoginRequired
from agentapp.isolation import RequestScope, Scope, UserScope, new_id
from agentapp.logs import described
from agentapp.server.limits import PAGE_SLOT
from agentapp.storage.values import User
from agentapp.web.access_lines import note_status, write_access_line
from agentapp.web.auth import claimed_user, signed_in_user
from agentapp.web.checks import check_closed
from agentapp.web.parts import parts, this_request

# These are the same for everybody and need no login, so they answer even while the database is away.
FOR_EVERYBODY = frozenset({"static", "health.livez", "health.readyz", "metrics.show"})
# These take stream slots, which have limits of their own.
STREAMS = frozenset({"turns.send", "turns.retry", "turns.events"})

log = logging.getLogger(__name__)


def init_app(app: Flask) -> None:
    app.before_request(open_scope)
    app.after_request(note_status)
    app.teardown_request(close_scope)


def open_scope() -> None:
    """Clear what an earlier request may have left on this thread, then bind this request's scope."""
    g.began = time.perf_counter()
    binder, request = parts().binder, this_request()
    binder.sweep()
    g.stack = stack = ExitStack()
    g.scope = scope = stack.enter_context(binder.bound(RequestScope(request_id=new_id())))
    parts().open_requests.add(scope.request_id)
    endpoint = request.endpoint
    if endpoint in FOR_EVERYBODY:
        return
    # Before the database is asked who it is, so that nobody fills the worker with that question.
    if endpoint not in STREAMS:
        _take_page_slot(request, stack)
    elif PAGE_SLOT in request.environ:
        raise BadRequest("Write this address without percent signs.")  # it has a page's thread
    user = signed_in_user()
    if user is not None:
        g.user = user
        g.scope = stack.enter_context(binder.bound(_scope_of(request, user, scope.request_id)))


def close_scope(error: BaseException | None = None) -> None:
    """Every clean-up runs even if another one fails. None of them may spoil the answer, which is ready."""
    stack: ExitStack | None = g.pop("stack", None)
    if stack is None:
        return
    # The first of them to run, so that all of the scope is still bound.
    stack.callback(write_access_line, g.began, is_quiet=this_request().endpoint in FOR_EVERYBODY)
    try:
        stack.close()
    except Exception as failure:
        log.error("a clean-up failed at the end of a request: %s", described(failure))
    try:
        check_closed(parts(), g.scope, streams="streams" in g)
    except Exception as failure:
        log.error("a check failed at the end of a request: %s", described(failure))


def user_scope() -> UserScope:
    scope = g.scope
    if not isinstance(scope, UserScope):
        raise LoginRequired("Sign in first.")
    return scope


def chat_scope() -> Scope:
    """The scope of a request about one chat. The query finds out whether that chat belongs to the user."""
    scope = user_scope()
    if not isinstance(scope, Scope):
        raise RuntimeError("this route has no session_id")
    return scope


def _take_page_slot(request: Request, stack: ExitStack) -> None:
    """Our own server has done it when the request came in: see ``server/request_loop.py``."""
    taken = request.environ.get(PAGE_SLOT)
    if isinstance(taken, Busy):
        raise taken
    claimed = claimed_user()
    if taken is None and claimed is not None:
        stack.callback(parts().pages.take(claimed).release)


def _scope_of(request: Request, user: User, request_id: str) -> UserScope:
    scope = UserScope(request_id=request_id, tenant_id=user.tenant_id, user_id=user.id)
    session_id = (request.view_args or {}).get("session_id")
    return scope if session_id is None else scope.within(session_id)
