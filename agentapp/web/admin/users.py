"""`/admin/users`: accounts, and what can be done to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, get_args

from flask import Blueprint, g, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, Forbidden, Refused
from agentapp.guardrails.wording import dollars, megabytes
from agentapp.isolation import UserScope
from agentapp.storage.names import MAX_NAME_CHARS
from agentapp.storage.user_admin import NewPassword, UserFacts
from agentapp.storage.user_rules import roles_given_by, why_not
from agentapp.storage.values import Role
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.tenants import shown_tenant
from agentapp.web.admin.viewer import viewer
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import field, query_text
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts, utc_now
from agentapp.web.problems import status_of

NOTICES: Mapping[str, str] = MappingProxyType(
    {
        "role": "The role was changed. It is in force with the next request.",
        "disabled": "The account is disabled. Its logins have ended, its data stays.",
        "enabled": "The account is enabled again.",
        "logins": "All logins of this account have ended.",
    }
)

ROLES: tuple[Role, ...] = get_args(Role)

blueprint = Blueprint("users", __name__, url_prefix="/users")


class UserRow(NamedTuple):
    """A user's facts, with the amounts in words."""

    facts: UserFacts
    stored: str
    used_today: str


@blueprint.get("")
def index() -> str:
    return _list_page()


@blueprint.post("")
def add() -> ResponseReturnValue:
    name = field("name", max_chars=256)
    role = field("role", max_chars=16, default="member")
    tenant = field("tenant", max_chars=256, default=g.user.tenant)
    try:
        made = parts().admin.users.add(user_scope(), name, _role(role), tenant)
    except (BadRequest, Forbidden) as error:
        if not wants_page():
            raise
        typed = {"name": name, "role": role, "tenant": tenant}
        return _list_page(problem_text=str(error), typed=typed), status_of(error)
    return _user_page(made.user.id, new_password=made), 201


@blueprint.get("/<id:user_id>")
def show(user_id: str) -> str:
    return _user_page(user_id, notice=NOTICES.get(request.args.get("done", ""), ""))


@blueprint.post("/<id:user_id>/role")
def change_role(user_id: str) -> ResponseReturnValue:
    role = field("role", max_chars=16)
    return _done(user_id, "role", lambda by: parts().admin.users.change_role(by, user_id, _role(role)))


@blueprint.post("/<id:user_id>/disable")
def disable(user_id: str) -> ResponseReturnValue:
    return _done(user_id, "disabled", lambda by: parts().admin.users.disable(by, user_id))


@blueprint.post("/<id:user_id>/enable")
def enable(user_id: str) -> ResponseReturnValue:
    return _done(user_id, "enabled", lambda by: parts().admin.users.enable(by, user_id))


@blueprint.post("/<id:user_id>/end-logins")
def end_logins(user_id: str) -> ResponseReturnValue:
    return _done(user_id, "logins", lambda by: parts().admin.users.end_logins(by, user_id))


@blueprint.post("/<id:user_id>/password")
def reset_password(user_id: str) -> ResponseReturnValue:
    """The answer shows the new password. There is no page to be sent on to: it is stored nowhere."""
    try:
        made = parts().admin.users.reset_password(user_scope(), user_id)
    except Forbidden as error:
        return _refused(user_id, error)
    return _user_page(user_id, new_password=made)


def _done(user_id: str, what: str, change: Callable[[UserScope], object]) -> ResponseReturnValue:
    try:
        change(user_scope())
    except (BadRequest, Forbidden) as error:
        return _refused(user_id, error)
    return redirect(f"/admin/users/{user_id}?done={what}", 303)


def _refused(user_id: str, error: Refused) -> ResponseReturnValue:
    if not wants_page():
        raise error
    return _user_page(user_id, problem_text=str(error)), status_of(error)


def _role(text: str) -> Role:
    if text not in ROLES:
        raise BadRequest(f"A role is one of {', '.join(ROLES)}.")
    return text


def _list_page(problem_text: str = "", typed: Mapping[str, str] | None = None) -> str:
    who, tenant = viewer(), shown_tenant()
    beginning = query_text("q", max_chars=MAX_NAME_CHARS)
    begins_after = after(str) or ("",)
    found = parts().admin.users.listed(
        tenant.id, utc_now().date(), beginning, str(begins_after[0]), PAGE_ROWS + 1
    )
    page = page_of([_row(facts) for facts in found], lambda row: (row.facts.user.name,))
    return render_template(
        "admin/users.html",
        page=page,
        query={"q": beginning, "tenant": tenant.name if who.is_operator else ""},
        tenant=tenant,
        roles=[(role, role) for role in roles_given_by(who.user)],
        typed=typed or {"name": "", "role": "member", "tenant": tenant.name or who.user.tenant},
        problem_text=problem_text,
    )


def _user_page(
    user_id: str, notice: str = "", problem_text: str = "", new_password: NewPassword | None = None
) -> str:
    who = viewer()
    facts = parts().admin.users.find(who.tenant_id, user_id, utc_now().date())
    return render_template(
        "admin/user.html",
        row=_row(facts),
        shown=facts.user,
        why_not=why_not(who.user, facts.user),
        roles=[(role, role) for role in roles_given_by(who.user)],
        notice=notice,
        problem_text=problem_text,
        new_password=new_password,
    )


def _row(facts: UserFacts) -> UserRow:
    return UserRow(facts, megabytes(facts.stored_bytes), dollars(facts.used_today_microusd))
