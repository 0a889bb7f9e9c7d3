"""The checks of isolation at the beginning and the end of each request, and of each stream."""

from __future__ import annotations

from collections.abc import Callable

from agentapp.isolation import RequestScope
from agentapp.web.parts import Parts

AT_OPEN = 1  # the thread was swept
AT_CLOSE = 3  # nothing is bound, no connection and no subscription is left


def check_closed(app: Parts, scope: RequestScope, *, streams: bool) -> None:
    """The request is over and its clean-ups have run. What is left of it is taken away and reported. If it
    ``streams``, its subscription goes on until the stream has ended.
    """
    app.open_requests.remove(scope.request_id)
    _check_thread(app, scope.request_id)
    if not streams:
        _check_subscription(app, scope.request_id)
    app.telemetry.check(AT_OPEN + AT_CLOSE - streams)
    app.telemetry.request_checked()


def stream_check(app: Parts, scope: RequestScope) -> Callable[[], None]:
    """To be called when the stream was closed, which is long after the request's teardown."""

    def check() -> None:
        _check_thread(app, scope.request_id)
        _check_subscription(app, scope.request_id)
        app.telemetry.check(AT_CLOSE)

    return check


def _check_thread(app: Parts, request_id: str) -> None:
    app.binder.sweep()  # it reports what it finds
    if left := app.db.close_left(request_id):
        app.telemetry.violation("connection-left", f"{left} database connections were left", request_id)


def _check_subscription(app: Parts, request_id: str) -> None:
    if app.turns.subscriptions.close_left(request_id):
        app.telemetry.violation("subscription-left", "a subscription was left open", request_id)
