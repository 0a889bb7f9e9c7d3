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
    """503 while the database is away, or has a schema that this code cannot work with."""
    parts().db.schema.require_now()
    return Response("ready\n", mimetype="text/plain")
