"""Chats over the web: list, show, rename, pin, delete and export them."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response, jsonify, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, GuardrailRefused, NotFound, Refused
from agentapp.isolation import Scope, new_id
from agentapp.storage.values import BranchPage, Transcript
from agentapp.web import transcript
from agentapp.web.audit_notes import note_export
from agentapp.web.hooks import chat_scope, user_scope
from agentapp.web.incoming import (
    MAX_ID_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_TITLE_CHARS,
    field,
    page_number,
    query_text,
    turn_field,
    typed_message,
)
from agentapp.web.limits import LimitsView, limits_view, storage_views
from agentapp.web.parts import parts
from agentapp.web.problems import problem_of
from agentapp.web.replies import replies_as_html

PAGE_SIZE = 30
MAX_SEARCH_CHARS = 200


@dataclass(frozen=True, slots=True)
class EditedMessage:
    """The message that the one in the box is to replace, by the id of its turn. It may be on another page."""

    id: str
    user_text: str


blueprint = Blueprint("chat", __name__, url_prefix="/chat")


@blueprint.get("")
def index() -> str:
    scope = user_scope()
    words, number = query_text("q", max_chars=MAX_SEARCH_CHARS), page_number()
    chats, has_more = parts().chats.page(scope, words=words, page=number, size=PAGE_SIZE)
    return render_template(
        "chats.html",
        pinned=parts().chats.pinned(scope) if number == 1 and not words else [],
        chats=chats,
        q=words,
        page=number,
        has_more=has_more,
        storage=storage_views(parts().room.standing(scope)),
    )


@blueprint.post("")
def create() -> ResponseReturnValue:
    scope = user_scope()
    parts().new_chats.count(scope.user_id)
    chat = parts().chats.create(scope)
    return redirect(url_for("chat.show", session_id=chat.id), 303)


@blueprint.get("/<id:session_id>")
def show(session_id: str) -> str:
    return chat_page()


@blueprint.get("/<id:session_id>/limits")
def limits(session_id: str) -> str:
    """The part of the chat's page that shows the limits, which every turn changes."""
    scope = chat_scope()
    parts().chats.get(scope)
    return render_template("_limits.html", limits=_limits(scope))


@blueprint.post("/<id:session_id>/rename")
def rename(session_id: str) -> ResponseReturnValue:
    title = " ".join(field("title", max_chars=MAX_TITLE_CHARS).split())
    if not title:
        raise BadRequest("A chat needs a title.")
    parts().chats.rename(chat_scope(), title)
    return redirect(url_for("chat.show", session_id=session_id), 303)


@blueprint.post("/<id:session_id>/pin")
def pin(session_id: str) -> ResponseReturnValue:
    wanted = field("pinned", max_chars=1)
    if wanted not in ("0", "1"):
        raise BadRequest("The field pinned is 1 or 0.")
    parts().chats.pin(chat_scope(), pinned=wanted == "1")
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
    return _as_download(jsonify(transcript.as_json(_exported("json"))), "json")


@blueprint.get("/<id:session_id>/export.md")
def export_markdown(session_id: str) -> Response:
    text = transcript.as_markdown(_exported("md"))
    return _as_download(Response(text, mimetype="text/markdown"), "md")


def _exported(format: str) -> Transcript:
    whole = parts().chats.transcript(chat_scope())
    note_export(chat_scope(), format)
    return whole


def chat_page(refusal: Refused | None = None) -> str:
    """The page of the chat that the address asks for.

    If a message was refused, it shows the reason, and the branch that the message was for.
    """
    scope = chat_scope()
    chat = parts().chats.get(scope)
    page = _page_asked_for(scope) if refusal is None else _page_of_refused(scope)
    chats, _ = parts().chats.page(scope, size=PAGE_SIZE)
    limited = refusal if isinstance(refusal, GuardrailRefused) else None
    return render_template(
        "chat.html",
        chat=chat,
        page=page,
        groups=transcript.with_pinned(parts().chats.pinned(scope), chats),
        running=page.running is not None,
        running_turn=page.running,
        elsewhere=page.running if page.running not in [turn.id for turn in page.turns] else None,
        editing=_edited(scope) if refusal is None else _edited_in_vain(scope),
        draft=typed_message() if refusal else "",
        problem=problem_of(refusal) if refusal and not limited else None,
        limits=_limits(scope, running=page.running is not None, refusal=limited),
        idempotency_key=new_id(),
        examples=parts().turns.kit.team.examples,
        max_chars=MAX_MESSAGE_CHARS,
        turns=transcript.turn_views(page, replies_as_html(scope, page)),
    )


def _limits(scope: Scope, *, running: bool = False, refusal: GuardrailRefused | None = None) -> LimitsView:
    turns, storage = parts().turns.standing(scope), parts().room.standing(scope)
    return limits_view(turns, storage, running=running, refusal=refusal)


def _page_asked_for(scope: Scope) -> BranchPage:
    branches = parts().branches
    version, before = (
        query_text("version", max_chars=MAX_ID_CHARS),
        query_text("before", max_chars=MAX_ID_CHARS),
    )
    if before:
        return branches.before(scope, before, version)
    through = version or query_text("edit", max_chars=MAX_ID_CHARS)
    return branches.through(scope, through) if through else branches.newest(scope)


def _page_of_refused(scope: Scope) -> BranchPage:
    """The message may have been refused before anybody looked where it was to go."""
    try:
        sent = turn_field("replaces") or turn_field("after")
        return parts().branches.through(scope, sent) if sent else parts().branches.newest(scope)
    except (BadRequest, NotFound):
        return parts().branches.newest(scope)


def _edited(scope: Scope) -> EditedMessage | None:
    turn_id = query_text("edit", max_chars=MAX_ID_CHARS)
    return EditedMessage(turn_id, parts().branches.user_message(scope, turn_id)) if turn_id else None


def _edited_in_vain(scope: Scope) -> EditedMessage | None:
    try:
        turn_id = turn_field("replaces")
        return EditedMessage(turn_id, parts().branches.user_message(scope, turn_id)) if turn_id else None
    except (BadRequest, NotFound):
        return None


def _as_download(answer: Response, ending: str) -> Response:
    name = f"chat-{request.view_args['session_id']}.{ending}" if request.view_args else f"chat.{ending}"
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
