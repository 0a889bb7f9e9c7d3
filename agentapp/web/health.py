"""Is the process alive, and can it serve?"""

from __future__ import annotations

from flask import Blueprint, Response

from agentapp.web.parts import parts

blueprint = Blueprint("health", __name__)


@blueprint.get("/livez")
def livez() -> Response:
    """Touches nothing: alive is alive."""
    return Response("alive\n", mimetype="text/plain")


@blueprint.get("/readyz")
def readyz() -> Response:
    """503 while the database is away."""
    parts().db.ping()
    return Response("ready\n", mimetype="text/plain")
