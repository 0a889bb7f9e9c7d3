"""`/admin/limits`: what was refused, who has limits of their own, and a form to change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote

from flask import Blueprint, Response, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, NotFound
from agentapp.guardrails.cell import Key
from agentapp.guardrails.limit_admin import LimitRow
from agentapp.guardrails.limit_changes import LIMITS
from agentapp.isolation import UserScope
from agentapp.storage.count_series import Counted
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import viewer
from agentapp.web.admin.windows import WINDOWS, Window, chosen_window
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import MAX_ID_CHARS, field, query_text
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import now, parts
from agentapp.web.plots import Plot, Series, bar_plot
from agentapp.web.problems import status_of

LISTS = MappingProxyType({"users": "Users with limits of their own", "tenants": "Tenants"})
SHOWN_SERIES = 5  # the plot has six colours; what is refused least often is one series, "others"
MAX_LIMIT_CHARS = 64
DONE = "The limits are changed. They hold in every worker from the next message on."
NO_SUCH_USER = "There is no user of that name."

blueprint = Blueprint("limits", __name__, url_prefix="/limits")


@blueprint.get("")
def index() -> ResponseReturnValue:
    who, window, shown = viewer(), chosen_window(), _chosen_list()
    name, problem = query_text("user", max_chars=MAX_ID_CHARS), ""
    limits = parts().admin.limits
    if name:
        try:
            return redirect(_path(limits.find("user", name, who.tenant_id).key), 303)
        except NotFound:
            problem = NO_SUCH_USER
    last = after(str)
    read = limits.tenants if shown == "tenants" else limits.limited_users
    found = read(who.tenant_id, str(last[0]) if last else "", PAGE_ROWS + 1)
    refusals = _refusals(window, who.tenant_id)
    page = render_template(
        "admin/limits.html",
        plot_of_refusals=_plot(refusals, window),
        refusals=[(_in_words(counted), sum(bars)) for counted, bars in refusals],
        window=window,
        windows=WINDOWS.values(),
        lists=LISTS,
        shown=shown,
        page=page_of(found, lambda row: (row.name,)),
        heads=[limit.words for limit in LIMITS["tenant" if shown == "tenants" else "user"]],
        path_of=_path,
        name=name,
        problem=problem,
    )
    return Response(page, 404 if problem else 200)


@blueprint.get("/<scope>/<owner_id>")
def show(scope: str, owner_id: str) -> str:
    return _page(_found(scope, owner_id), notice=DONE if request.args.get("done") else "")


@blueprint.post("/<scope>/<owner_id>")
def change(scope: str, owner_id: str) -> ResponseReturnValue:
    row, by = _found(scope, owner_id), user_scope()
    wanted = {
        name: field(name, max_chars=MAX_LIMIT_CHARS, default=text) for name, text in _written(row).items()
    }
    try:
        _set(row.key, wanted, by)
    except BadRequest as error:
        if not wants_page():
            raise
        problems = parts().admin.limits.problems(*row.key, wanted, viewer().tenant_id)
        return Response(_page(row, wanted=wanted, problems=problems), status_of(error))
    return redirect(f"{_path(row.key)}?done=1", 303)


def _set(key: Key, wanted: Mapping[str, str], by: UserScope) -> None:
    parts().admin.limits.change(*key, wanted, viewer().tenant_id, by)


def _found(scope: str, owner_id: str) -> LimitRow:
    if scope not in LIMITS or len(owner_id) > MAX_ID_CHARS:
        raise NotFound("Nobody of that kind has limits.")
    return parts().admin.limits.find(scope, owner_id, viewer().tenant_id)


def _page(
    row: LimitRow,
    notice: str = "",
    wanted: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> str:
    return render_template(
        "admin/limits_of.html",
        row=row,
        path=_path(row.key),
        typed=wanted or _written(row),
        problems=problems or {},
        notice=notice,
        may_change=viewer().is_operator or row.key.scope == "user",
    )


def _written(row: LimitRow) -> dict[str, str]:
    """The limits as they stand in the form."""
    return {each.limit.name: each.value if each.is_changed else "" for each in row.limits}


def _refusals(window: Window, tenant_id: str | None) -> list[tuple[Counted, Sequence[int]]]:
    """The most frequent first."""
    found = parts().admin.counts.over(window.until(now()), ("refusals",), tenant_id)
    return sorted(found.items(), key=lambda each: (-sum(each[1]), each[0]))


def _plot(refusals: Sequence[tuple[Counted, Sequence[int]]], window: Window) -> Plot:
    stretch = window.until(now())
    shown = [Series(_in_words(counted), list(bars)) for counted, bars in refusals[:SHOWN_SERIES]]
    others = [bars for _, bars in refusals[SHOWN_SERIES:]]
    if others:
        shown.append(Series("others", [sum(each) for each in zip(*others, strict=True)]))
    nothing = [Series("Refusals", [0] * stretch.bars)]
    return bar_plot(f"Refusals, {window.words}", window.labels(stretch), shown or nothing)


def _in_words(counted: Counted) -> str:
    """Such as "rate-limited (user)"."""
    code, _, scope = counted.label.partition("/")
    return f"{code} ({scope})" if scope else code


def _chosen_list() -> str:
    name = request.args.get("list", "users")
    if name not in LISTS:
        raise BadRequest(f"The list is one of {', '.join(LISTS)}.")
    return name


def _path(key: Key) -> str:
    return f"/admin/limits/{key.scope}/{quote(key.id, safe='')}"
