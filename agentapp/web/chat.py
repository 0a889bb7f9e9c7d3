"""The chats: the list, the page, sending a message, renaming, deleting, exporting."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, redirect, render_template, request, url_for

from agentapp.errors import BadRequest, GuardrailRefused, Refused
from agentapp.storage.values import new_id
from agentapp.turn import Turn, usage_as_json
from agentapp.web import transcript
from agentapp.web.hooks import chat_scope, user_scope
from agentapp.web.incoming import (
    MAX_MESSAGE,
    MAX_TITLE,
    draft,
    field,
    key_field,
    message_field,
    page_number,
    query_text,
)
from agentapp.web.limits import limits_view
from agentapp.web.negotiation import EVENTS, JSON, answer_kind, wants_page
from agentapp.web.parts import parts, request_id
from agentapp.web.problems import dated, problem, problem_answer, problem_of, status_of
from agentapp.web.sse import EventStream

PAGE_SIZE = 30

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

blueprint = Blueprint("chat", __name__, url_prefix="/chat")


@blueprint.get("")
def index() -> Any:
    scope = user_scope()
    words, page = query_text("q", most=200), page_number()
    chats, has_more = parts().chats.page(scope, words=words, page=page, size=PAGE_SIZE)
    return render_template("chats.html", chats=chats, q=words, page=page, has_more=has_more)


@blueprint.post("")
def create() -> Any:
    chat = parts().chats.create(user_scope())
    return redirect(url_for("chat.show", session_id=chat.id), 303)


@blueprint.get("/<id:session_id>")
def show(session_id: str) -> Any:
    return _page()


@blueprint.post("/<id:session_id>/messages")
def send(session_id: str) -> Any:
    scope = chat_scope()
    try:
        turn = parts().answering.begin(scope, message_field(), key_field())
    except Refused as error:
        if error.code not in MENDABLE or not wants_page():
            raise
        return dated(Response(_page(error), status_of(error)), problem_of(error))
    match answer_kind():
        case kind if kind == EVENTS:
            return _event_stream(turn)
        case kind if kind == JSON:
            return _result(turn)
        case _:
            turn.finish()
            return redirect(url_for("chat.show", session_id=session_id, _anchor="latest"), 303)


@blueprint.get("/<id:session_id>/limits")
def limits(session_id: str) -> str:
    """The part of the page that changes with every turn, by itself."""
    scope = chat_scope()
    parts().chats.get(scope)
    return render_template("_limits.html", limits=limits_view(parts().answering.standing(scope)))


@blueprint.post("/<id:session_id>/rename")
def rename(session_id: str) -> Any:
    title = " ".join(field("title", most=MAX_TITLE).split())
    if not title:
        raise BadRequest("A chat needs a title.")
    parts().chats.rename(chat_scope(), title)
    return redirect(url_for("chat.show", session_id=session_id), 303)


@blueprint.get("/<id:session_id>/delete")
def confirm_delete(session_id: str) -> Any:
    return render_template("delete.html", chat=parts().chats.get(chat_scope()))


@blueprint.post("/<id:session_id>/delete")
def delete(session_id: str) -> Any:
    parts().answering.turns.delete_chat(chat_scope())
    return redirect(url_for("chat.index"), 303)


@blueprint.get("/<id:session_id>/export.json")
def export_json(session_id: str) -> Response:
    whole = parts().chats.transcript(chat_scope())
    answer = jsonify(transcript.as_json(whole))
    return _download(answer, "json")


@blueprint.get("/<id:session_id>/export.md")
def export_markdown(session_id: str) -> Response:
    whole = parts().chats.transcript(chat_scope())
    return _download(Response(transcript.as_markdown(whole), mimetype="text/markdown"), "md")


def _page(refusal: Refused | None = None) -> str:
    scope = chat_scope()
    whole = parts().chats.transcript(scope)
    chats, _ = parts().chats.page(scope, size=PAGE_SIZE)
    running = any(turn.status == "running" for turn in whole.turns)
    limited = refusal if isinstance(refusal, GuardrailRefused) else None
    return render_template(
        "chat.html",
        chat=whole.chat,
        turns=transcript.turn_views(whole),
        groups=transcript.by_day(chats),
        running=running,
        draft=draft() if refusal else "",
        problem=problem_of(refusal) if refusal and not limited else None,
        limits=limits_view(parts().answering.standing(scope), running=running, refusal=limited),
        idempotency_key=new_id(),
        examples=parts().answering.team.examples,
        max_chars=MAX_MESSAGE,
    )


def _event_stream(turn: Turn) -> Response:
    """The request's teardown runs before the first byte: the scope is bound anew around each pull."""
    body = parts().binder.streamed(turn.scope, EventStream(turn))
    answer = Response(body, mimetype=EVENTS)
    answer.headers["X-Accel-Buffering"] = "no"
    return answer


def _result(turn: Turn) -> Response:
    end = turn.finish()
    if end.error_code is not None:
        body = problem(end.error_code, end.error_message or "", turn_id=turn.id, request_id=request_id())
        return problem_answer(body)
    return jsonify(
        turn_id=turn.id,
        status=end.status,
        reply=end.reply,
        usage=usage_as_json(end.usage),
        cost_usd=end.cost_usd,
    )


def _download(answer: Response, ending: str) -> Response:
    name = f"chat-{request.view_args['session_id']}.{ending}" if request.view_args else f"chat.{ending}"
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
