"""`/metrics`: what Prometheus reads."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from ipaddress import ip_address

from flask import Blueprint, Request, Response, request

from agentapp.errors import LoginRequired, NotFound, StorageUnavailable
from agentapp.telemetry.catalogue import READ_FROM_DATABASE, REDIS_UP
from agentapp.telemetry.metrics import CONTENT_TYPE, GaugeNow
from agentapp.web.parts import Parts, parts

FORWARDED = ("X-Forwarded-For", "Forwarded")

blueprint = Blueprint("metrics", __name__)


@blueprint.get("/metrics")
def show() -> Response:
    """Those of all workers of this host together, whichever of them answers."""
    app = parts()
    _require_scraper(request, app.settings.metrics_token)
    gauges = (*_redis_up(app), *_from_database(app))
    return Response(app.telemetry.metrics.exposition(gauges), content_type=CONTENT_TYPE)


def _require_scraper(request: Request, token: str | None) -> None:
    if token is not None:
        sent = request.authorization
        given = sent.token if sent is not None and sent.type == "bearer" and sent.token else ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            raise LoginRequired("This needs the token of AGENTAPP_METRICS_TOKEN.")
    elif not _is_from_this_machine(request):
        raise NotFound("There is nothing here.")


def _is_from_this_machine(request: Request) -> bool:
    """What a proxy on this machine forwards is not, also if the proxy is not trusted to say for whom."""
    try:
        is_loopback = ip_address(request.remote_addr or "").is_loopback
    except ValueError:
        return not request.remote_addr  # a Unix socket has no address
    hops = parts().settings.trusted_proxies
    return is_loopback and (hops > 0 or not any(name in request.headers for name in FORWARDED))


def _redis_up(app: Parts) -> list[GaugeNow]:
    if app.redis is None:
        return []
    return [GaugeNow(REDIS_UP.name, REDIS_UP.help, {"": 0.0 if app.redis.is_away else 1.0})]


def _from_database(app: Parts) -> list[GaugeNow]:
    """What is not there while the database is away. All else is."""
    try:
        score = app.isolation.now()
        now: dict[str, Mapping[str, float]] = {
            "isolation_score": {} if score is None else {"": score},
            "breakers_open": app.breakers.open_breakers(),
            "alerts_open": app.admin.alerts.open_by_kind(),
        }
    except StorageUnavailable:
        return []
    return [
        GaugeNow(metric.name, metric.help, now[metric.name], next(iter(metric.labels), ""))
        for metric in READ_FROM_DATABASE
    ]
