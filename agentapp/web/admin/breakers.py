"""`/admin/breakers`: who is stopped, why and until when; reset and force."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Literal, cast
from urllib.parse import quote

from flask import Blueprint, Response, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, Forbidden, NotFound
from agentapp.guardrails.cell import Key
from agentapp.guardrails.operator import MAX_REASON_CHARS, BreakerView, Mark, checked_reason
from agentapp.guardrails.wording import clock
from agentapp.isolation import UserScope
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import viewer
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import MAX_ID_CHARS, field, query_text
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts
from agentapp.web.problems import status_of

LISTS: Mapping[Mark, str] = MappingProxyType(
    {"open": "Tripped", "forced": "Forced closed", "failing": "Failing, not tripped"}
)
IN_WORDS = MappingProxyType({"session": "Chat", "user": "User", "tenant": "Tenant", "provider": "Model"})
ACTIONS = ("reset", "open", "closed")
DONE = MappingProxyType(
    {
        "reset": "The breaker is reset, in every worker from the next message on.",
        "open": "It is paused until somebody resets it, in every worker from the next message on.",
        "closed": "Nothing pauses it until somebody resets it, in every worker from the next message on.",
    }
)
NO_REASON = "Say why. It is kept in the audit log."

blueprint = Blueprint("breakers", __name__, url_prefix="/breakers")


@blueprint.get("")
def index() -> ResponseReturnValue:
    who, mark = viewer(), _chosen_list()
    scope, name = query_text("scope", max_chars=MAX_ID_CHARS), query_text("name", max_chars=MAX_ID_CHARS)
    problem = ""
    if name:
        try:
            key = parts().admin.breakers.find(scope, name, who.tenant_id).key
        except NotFound:
            problem = f"There is no {IN_WORDS.get(scope, 'such thing').lower()} of that name or id."
        else:
            return redirect(_path(key), 303)
    last = after(str, str)
    begin = None if last is None else Key(str(last[0]), str(last[1]))
    found = parts().admin.breakers.page(mark, who.tenant_id, begin, PAGE_ROWS + 1)
    page = render_template(
        "admin/breakers.html",
        lists=LISTS,
        mark=mark,
        page=page_of(found, lambda view: view.key),
        kinds=[(scope, IN_WORDS[scope]) for scope in _scopes(who.is_operator)],
        scope=scope,
        name=name,
        problem=problem,
        **_WORDS,
    )
    return Response(page, 404 if problem else 200)


@blueprint.get("/<scope>/<breaker_id>")
def show(scope: str, breaker_id: str) -> str:
    return _page(_found(scope, breaker_id), notice=DONE.get(request.args.get("done", ""), ""))


@blueprint.post("/<scope>/<breaker_id>")
def change(scope: str, breaker_id: str) -> ResponseReturnValue:
    view, by = _found(scope, breaker_id), user_scope()
    reason = field("reason", max_chars=32 * MAX_REASON_CHARS, default="")
    action = field("action", max_chars=16)
    try:
        if not reason.strip():
            raise BadRequest(NO_REASON)
        _set(view.key, action, by, checked_reason(reason))
    except (BadRequest, Forbidden) as error:
        if not wants_page():
            raise
        return Response(_page(view, problem=str(error), reason=reason), status_of(error))
    return redirect(f"{_path(view.key)}?done={action}", 303)


def _set(key: Key, action: str, by: UserScope, reason: str) -> None:
    admin, tenant_id = parts().admin.breakers, viewer().tenant_id
    if action == "reset":
        admin.reset(*key, by, reason, tenant_id)
    elif action in ACTIONS:
        admin.force(*key, cast(Literal["open", "closed"], action), by, reason, tenant_id)
    else:
        raise BadRequest(f"The action is one of {', '.join(ACTIONS)}.")


def _found(scope: str, breaker_id: str) -> BreakerView:
    if len(breaker_id) > MAX_ID_CHARS:
        raise NotFound("There is no such breaker.")
    return parts().admin.breakers.find(scope, breaker_id, viewer().tenant_id)


def _page(view: BreakerView, notice: str = "", problem: str = "", reason: str = "") -> str:
    return render_template(
        "admin/breaker.html",
        view=view,
        notice=notice,
        problem=problem,
        reason=reason,
        max_reason=MAX_REASON_CHARS,
        may_force=viewer().is_operator or view.row.scope != "tenant",
        may_reset=viewer().is_operator or view.row.scope != "tenant" or not _is_forced(view),
        **_WORDS,
    )


def why(view: BreakerView) -> str:
    """What made the breaker what it is, in a few words."""
    row = view.row
    if _is_forced(view):
        return f"Forced {row.state.removeprefix('forced-')}"
    if row.state == "closed":
        return _failures(row.failures)
    if row.scope in ("tenant", "provider"):
        return "The model did not answer"
    return _failures(row.failures) if row.failures >= view.threshold else "Too many failures lately"


def until(view: BreakerView) -> str:
    row = view.row
    if _is_forced(view):
        return "Until it is reset"
    if row.state == "half-open":
        return "One message is trying now" if row.probing else "The next message tries"
    return "–" if row.retry_after is None else f"{clock(row.retry_after)} from now"


def since(view: BreakerView) -> datetime | None:
    if view.row.opened_at is not None:
        return datetime.fromisoformat(view.row.opened_at)
    return view.forced_by.at if view.forced_by else None


def label(view: BreakerView) -> str:
    row = view.row
    return f"{IN_WORDS[row.scope]} {row.id if row.scope in ('session', 'provider') else row.name or row.id}"


def _is_forced(view: BreakerView) -> bool:
    return view.row.state.startswith("forced")


def _failures(count: int) -> str:
    return f"{count:,} failure{'' if count == 1 else 's'} in a row" if count else "–"


def _chosen_list() -> Mark:
    name = request.args.get("show", "open")
    if name not in LISTS:
        raise BadRequest(f"The list is one of {', '.join(LISTS)}.")
    return cast(Mark, name)


def _scopes(is_operator: bool) -> tuple[str, ...]:
    return tuple(
        scope for scope in ("user", "session", "tenant", "provider") if is_operator or scope != "provider"
    )


def _path(key: Key) -> str:
    return f"/admin/breakers/{key.scope}/{quote(key.id, safe='')}"


_WORDS = MappingProxyType({"why": why, "since": since, "until": until, "label": label, "path_of": _path})
