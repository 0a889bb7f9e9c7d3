"""Chats over the web: list, show, rename, delete and export them."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, GuardrailRefused, Refused
from agentapp.isolation import new_id
from agentapp.web import transcript
from agentapp.web.hooks import chat_scope, user_scope
from agentapp.web.incoming import (
    MAX_MESSAGE_CHARS,
    MAX_TITLE_CHARS,
    field,
    page_number,
    query_text,
    typed_message,
)
from agentapp.web.limits import limits_view
from agentapp.web.parts import parts
from agentapp.web.problems import problem_of
from agentapp.web.versions import branch

PAGE_SIZE = 30
MAX_SEARCH_CHARS = 200

blueprint = Blueprint("chat", __name__, url_prefix="/chat")


@blueprint.get("")
def index() -> str:
    scope = user_scope()
    words, number = query_text("q", max_chars=MAX_SEARCH_CHARS), page_number()
    chats, has_more = parts().chats.page(scope, words=words, page=number, size=PAGE_SIZE)
    return render_template("chats.html", chats=chats, q=words, page=number, has_more=has_more)


@blueprint.post("")
def create() -> ResponseReturnValue:
    chat = parts().chats.create(user_scope())
    return redirect(url_for("chat.show", session_id=chat.id), 303)


@blueprint.get("/<id:session_id>")
def show(session_id: str) -> str:
    return chat_page()


@blueprint.get("/<id:session_id>/limits")
def limits(session_id: str) -> str:
    """The part of the chat's page that shows the limits, which every turn changes."""
    scope = chat_scope()
    parts().chats.get(scope)
    return render_template("_limits.html", limits=limits_view(parts().turns.standing(scope)))


@blueprint.post("/<id:session_id>/rename")
def rename(session_id: str) -> ResponseReturnValue:
    title = " ".join(field("title", max_chars=MAX_TITLE_CHARS).split())
    if not title:
        raise BadRequest("A chat needs a title.")
    parts().chats.rename(chat_scope(), title)
    return redirect(url_for("chat.show", session_id=session_id), 303)


@blueprint.get("/<id:session_id>/delete")
def confirm_delete(session_id: str) -> str:
    return render_template("delete.html", chat=parts().chats.get(chat_scope()))


@blueprint.post("/<id:session_id>/delete")
def delete(session_id: str) -> ResponseReturnValue:
    parts().turns.delete_chat(chat_scope())
    return redirect(url_for("chat.index"), 303)


@blueprint.get("/<id:session_id>/export.json")
def export_json(session_id: str) -> Response:
    whole = parts().chats.transcript(chat_scope())
    return _as_download(jsonify(transcript.as_json(whole)), "json")


@blueprint.get("/<id:session_id>/export.md")
def export_markdown(session_id: str) -> Response:
    whole = parts().chats.transcript(chat_scope())
    return _as_download(Response(transcript.as_markdown(whole), mimetype="text/markdown"), "md")


def chat_page(refusal: Refused | None = None) -> str:
    """The chat's page, with the branch that the address asks for.

    If a message was refused, it shows the reason, and the branch that the message was for.
    """
    scope = chat_scope()
    whole = parts().chats.transcript(scope)
    edited = request.args.get("edit") if refusal is None else request.form.get("replaces")
    shown = branch(whole.turns, _version_to_show(refusal, {turn.id for turn in whole.turns}))
    views = transcript.turn_views(whole, shown)
    running = next((turn.id for turn in whole.turns if turn.status == "running"), None)
    chats, _ = parts().chats.page(scope, size=PAGE_SIZE)
    limited = refusal if isinstance(refusal, GuardrailRefused) else None
    return render_template(
        "chat.html",
        chat=whole.chat,
        turns=views,
        groups=transcript.by_day(chats),
        running=running is not None,
        running_turn=running,
        elsewhere=running if running not in [turn.id for turn in shown] else None,
        after=shown[-1].id if shown else "",
        editing=next((view for view in views if view.id == edited), None),
        draft=typed_message() if refusal else "",
        problem=problem_of(refusal) if refusal and not limited else None,
        limits=limits_view(parts().turns.standing(scope), running=running is not None, refusal=limited),
        idempotency_key=new_id(),
        examples=parts().turns.kit.team.examples,
        max_chars=MAX_MESSAGE_CHARS,
    )


def _version_to_show(refusal: Refused | None, known: set[str]) -> str | None:
    if refusal is None:
        return request.args.get("version") or request.args.get("edit")
    sent = request.form.get("replaces") or request.form.get("after")
    return sent if sent in known else None


def _as_download(answer: Response, ending: str) -> Response:
    name = f"chat-{request.view_args['session_id']}.{ending}" if request.view_args else f"chat.{ending}"
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
