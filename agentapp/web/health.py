"""Whether the process is alive, and whether it can serve requests."""

from __future__ import annotations

from flask import Blueprint, Response

from agentapp.web.parts import parts

blueprint = Blueprint("health", __name__)


@blueprint.get("/livez")
def livez() -> Response:
    """Uses nothing else, not even the database: if the process answers, it is alive."""
    return Response("alive\n", mimetype="text/plain")


@blueprint.get("/readyz")
def readyz() -> Response:
    """503 while the database is away. Without Redis all goes on, so then it only says so."""
    app = parts()
    app.db.ping()
    degraded = app.redis is not None and app.redis.is_away
    text = "ready, degraded: redis is away\n" if degraded else "ready\n"
    return Response(text, mimetype="text/plain")
