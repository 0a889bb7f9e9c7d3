"""Whether the process is alive, and whether it can serve requests."""

from __future__ import annotations

from flask import Blueprint, Response

from agentapp.web.parts import parts
from agentapp.web.problems import problem, problem_answer

blueprint = Blueprint("health", __name__)


@blueprint.get("/livez")
def livez() -> Response:
    """Uses nothing else, not even the database: if the process answers, it is alive."""
    return Response("alive\n", mimetype="text/plain")


@blueprint.get("/readyz")
def readyz() -> Response:
    """503 and the reason while this worker cannot serve. Without Redis all goes on, so then it only says
    so.
    """
    if parts().turns.draining.has_begun:
        return problem_answer(
            problem("draining", "draining: this worker takes nothing new and is about to end")
        )
    found = parts().readiness.problem()
    if found is not None:
        return problem_answer(problem("storage-unavailable", found))
    redis = parts().redis
    is_degraded = redis is not None and redis.is_away
    text = "ready, degraded: redis is away\n" if is_degraded else "ready\n"
    return Response(text, mimetype="text/plain")
