"""The checks of isolation at the beginning and the end of each request, and of each stream."""

from __future__ import annotations

from collections.abc import Callable

from agentapp.isolation import RequestScope, UserScope
from agentapp.web.parts import Parts

AT_OPEN = 1  # the thread was swept
AT_CLOSE = 3  # nothing is bound, no connection and no subscription is left


def check_closed(app: Parts, scope: RequestScope, *, streams: bool) -> None:
    """The request is over and its clean-ups have run. What is left of it is taken away and reported. If it
    ``streams``, its subscription goes on until the stream has ended.
    """
    app.open_requests.remove(scope.request_id)
    _check_thread(app, scope)
    if not streams:
        _check_subscription(app, scope)
    app.telemetry.check(AT_OPEN + AT_CLOSE - streams, tenant_id=_tenant_of(scope))
    app.telemetry.request_checked(tenant_id=_tenant_of(scope))


def stream_check(app: Parts, scope: RequestScope) -> Callable[[], None]:
    """To be called when the stream was closed, which is long after the request's teardown."""

    def check() -> None:
        _check_thread(app, scope)
        _check_subscription(app, scope)
        app.telemetry.check(AT_CLOSE, tenant_id=_tenant_of(scope))

    return check


def _check_thread(app: Parts, scope: RequestScope) -> None:
    app.binder.sweep()  # it reports what it finds
    if left := app.db.close_left(scope.request_id):
        _report(app, "connection-left", f"{left} database connections were left", scope)


def _check_subscription(app: Parts, scope: RequestScope) -> None:
    if app.turns.subscriptions.close_left(scope.request_id):
        _report(app, "subscription-left", "a subscription was left open", scope)


def _report(app: Parts, kind: str, detail: str, scope: RequestScope) -> None:
    app.telemetry.violation(kind, detail, scope.request_id, tenant_id=_tenant_of(scope))


def _tenant_of(scope: RequestScope) -> str:
    return scope.tenant_id if isinstance(scope, UserScope) else ""
