"""Turns over the web: sending a message, following a turn, stopping it, trying again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flask import Blueprint, Response, g, jsonify, redirect, request, url_for
from flask.typing import ResponseReturnValue

from agentapp.errors import (
    GuardrailRefused,
    IdempotencyMismatch,
    InvalidMessage,
    MessageTooLong,
    Refused,
    TurnInProgress,
    TurnInterrupted,
)
from agentapp.events import TurnCompleted
from agentapp.server.limits import CLIENT, HAS_BEGUN
from agentapp.turns.feed import Subscription
from agentapp.turns.played import PlayedSubscription
from agentapp.turns.values import NewMessage
from agentapp.web.auth import login_token
from agentapp.web.chat import chat_page
from agentapp.web.checks import stream_check
from agentapp.web.hooks import chat_scope
from agentapp.web.incoming import key_field, last_event_number, message_field, turn_field
from agentapp.web.negotiation import EVENTS, JSON, PAGE, answer_kind, wants_page
from agentapp.web.parts import parts
from agentapp.web.problems import answer_with_page, problem, problem_answer
from agentapp.web.sse import Client, EventStream, PlayedEventStream

# A plain form waits for its answer, but not for ever: the page then shows how far the answer is, and can stop
# it.
FORM_WAIT_SECONDS = 8.0
STOP_WAIT_SECONDS = 2.0

# Errors that a person can do something about, and whatever a guardrail refuses. The chat page is shown again,
# with the reason and with the text that was sent.
SHOWN_ON_CHAT_PAGE = (GuardrailRefused, InvalidMessage, MessageTooLong, TurnInProgress, IdempotencyMismatch)

blueprint = Blueprint("turns", __name__, url_prefix="/chat/<id:session_id>")


@blueprint.post("/messages")
def send(session_id: str) -> ResponseReturnValue:
    return _send(
        lambda: NewMessage(message_field(), key_field(), turn_field("after"), turn_field("replaces"))
    )


@blueprint.post("/turns/<id:turn_id>/retry")
def retry(session_id: str, turn_id: str) -> ResponseReturnValue:
    """Another version of a turn: the same message once more."""
    return _send(lambda: NewMessage(None, key_field(), replaces=turn_id))


@blueprint.get("/turns/<id:turn_id>/events")
def events(session_id: str, turn_id: str) -> Response:
    return _event_stream(parts().turns.follow(chat_scope(), turn_id, last_event_number(), login_token()))


@blueprint.post("/turns/<id:turn_id>/stop")
def stop(session_id: str, turn_id: str) -> ResponseReturnValue:
    subscription = parts().turns.stop(chat_scope(), turn_id, login_token())
    try:
        end = subscription.finish(STOP_WAIT_SECONDS)
    finally:
        subscription.close()
    if answer_kind() == PAGE:
        return _redirect_to_chat()
    if end is None:
        return jsonify(turn_id=turn_id, status="running"), 202
    return jsonify(_result_json(end))


def _send(read: Callable[[], NewMessage]) -> ResponseReturnValue:
    """``read`` takes the message from the request. An error in the message is shown like any other error."""
    kind, environ = answer_kind(), request.environ
    client = environ.get(CLIENT)
    # A plain form is answered after some seconds in any case, so it cannot play the turn itself.
    plays = kind == JSON or (kind == EVENTS and client is not None)
    try:
        subscription = parts().turns.send(chat_scope(), read(), login_token(), plays=plays)
    except Refused as error:
        if not isinstance(error, SHOWN_ON_CHAT_PAGE) or not wants_page():
            raise
        return answer_with_page(chat_page(error), error)
    g.turn_id = subscription.feed.turn_id
    environ.get(HAS_BEGUN, _tell_nobody)()
    if kind == EVENTS:
        return _event_stream(subscription, client)
    try:
        if kind == JSON:
            return _wait_for_answer(subscription)
        subscription.finish(FORM_WAIT_SECONDS)
        return _redirect_to_chat()
    finally:
        subscription.close()


def _tell_nobody() -> None:
    """Another server does not ask when a turn has begun."""


def _event_stream(subscription: Subscription, client: Client | None = None) -> Response:
    """The request's teardown runs before the first byte. No scope is bound while the reader waits."""
    stream: Iterator[bytes] = EventStream(subscription)
    if client is not None and isinstance(subscription, PlayedSubscription):
        stream = PlayedEventStream(subscription, client)
    answer = Response(stream, mimetype=EVENTS)
    answer.headers["X-Accel-Buffering"] = "no"
    g.streams = True
    answer.call_on_close(stream_check(parts(), chat_scope()))
    return answer


def _wait_for_answer(subscription: Subscription) -> Response:
    end = subscription.finish()
    if end is None:
        raise TurnInterrupted("The server is restarting. The answer goes on: ask for it again.")
    result = end.result
    if result.error_code:
        message = result.error_message or ""
        body = problem(result.error_code, message, turn_id=end.turn_id, request_id=end.request_id)
        return problem_answer(body)
    return jsonify(_result_json(end))


def _result_json(end: TurnCompleted) -> dict[str, object]:
    data = end.data
    return {name: data[name] for name in ("turn_id", "status", "reply", "usage", "cost_usd")}


def _redirect_to_chat() -> ResponseReturnValue:
    return redirect(url_for("chat.show", session_id=chat_scope().session_id, _anchor="latest"), 303)
