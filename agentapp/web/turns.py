"""Turns over the web: sending a message, following a turn, stopping it, trying again."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, redirect, url_for

from agentapp.errors import Refused, TurnInterrupted
from agentapp.storage.values import Sent
from agentapp.turns.feed import Follower
from agentapp.web.auth import login_token
from agentapp.web.chat import page
from agentapp.web.hooks import chat_scope
from agentapp.web.incoming import key_field, last_event, message_field, turn_field
from agentapp.web.negotiation import EVENTS, JSON, PAGE, answer_kind, wants_page
from agentapp.web.parts import parts
from agentapp.web.problems import dated, problem, problem_answer, problem_of, status_of
from agentapp.web.sse import EventStream

# A plain form waits for its answer, but not for ever: the page shows how far it is, and can stop it.
PATIENCE = 8.0
STOP_PATIENCE = 2.0

# Refusals a person can mend on the spot: the page comes back with the reason and the text still there.
MENDABLE = frozenset(
    {
        "invalid-message",
        "message-too-long",
        "turn-in-progress",
        "idempotency-mismatch",
        "breaker-open",
        "rate-limited",
        "budget-exhausted",
        "busy",
    }
)

blueprint = Blueprint("turns", __name__, url_prefix="/chat/<id:session_id>")


@blueprint.post("/messages")
def send(session_id: str) -> Any:
    return _sent(lambda: Sent(message_field(), key_field(), turn_field("after"), turn_field("replaces")))


@blueprint.post("/turns/<id:turn_id>/retry")
def retry(session_id: str, turn_id: str) -> Any:
    """Another version of a turn: the same message once more."""
    return _sent(lambda: Sent(None, key_field(), replaces=turn_id))


@blueprint.get("/turns/<id:turn_id>/events")
def events(session_id: str, turn_id: str) -> Response:
    return _event_stream(parts().stage.follow(chat_scope(), turn_id, last_event(), login_token()))


@blueprint.post("/turns/<id:turn_id>/stop")
def stop(session_id: str, turn_id: str) -> Any:
    follower = parts().stage.stop(chat_scope(), turn_id, login_token())
    try:
        end = follower.finish(STOP_PATIENCE)
    finally:
        follower.close()
    if answer_kind() == PAGE:
        return _back()
    if end is None:
        return jsonify(turn_id=turn_id, status="running"), 202
    return jsonify(_result(end))


def _sent(read: Any) -> Any:
    try:
        follower = parts().stage.send(chat_scope(), read(), login_token())
    except Refused as error:
        if error.code not in MENDABLE or not wants_page():
            raise
        return dated(Response(page(error), status_of(error)), problem_of(error))
    if answer_kind() == EVENTS:
        return _event_stream(follower)
    try:
        if answer_kind() == JSON:
            return _answer(follower)
        follower.finish(PATIENCE)
        return _back()
    finally:
        follower.close()


def _event_stream(follower: Follower) -> Response:
    """The request's teardown runs before the first byte. Nothing is bound while somebody waits for events."""
    answer = Response(EventStream(follower), mimetype=EVENTS)
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


def _answer(follower: Follower) -> Response:
    end = follower.finish()
    if end is None:
        raise TurnInterrupted("The server is restarting. The answer goes on: ask for it again.")
    if error := end.get("error"):
        more = {"turn_id": end["turn_id"], "request_id": end["request_id"]}
        return problem_answer(problem(error["code"], error["message"] or "", **more))
    return jsonify(_result(end))


def _result(end: dict[str, Any]) -> dict[str, Any]:
    return {name: end[name] for name in ("turn_id", "status", "reply", "usage", "cost_usd")}


def _back() -> Any:
    return redirect(url_for("chat.show", session_id=chat_scope().session_id, _anchor="latest"), 303)
