"""`/admin/usage`: what was spent in a month, by day, tenant, user, model and agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from flask import Blueprint, render_template

from agentapp.errors import BadRequest
from agentapp.guardrails.wording import dollars
from agentapp.storage.usage_days import Used
from agentapp.storage.usage_reports import Month, UsageLine
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.tenants import ShownTenant, shown_tenant
from agentapp.web.admin.viewer import require_operator, viewer
from agentapp.web.incoming import query_text
from agentapp.web.parts import parts, utc_now
from agentapp.web.plots import Plot, Series, bar_plot

MOST_SHOWN = 20  # users or tenants; a link leads to all of them
WRITTEN_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")

blueprint = Blueprint("usage", __name__, url_prefix="/usage")


class Months(NamedTuple):
    """The one that is shown, and those beside it as they stand in the address; empty if there is none."""

    month: Month
    this: str
    before: str
    next: str

    @property
    def in_words(self) -> str:
        return f"{self.month.first:%B %Y}"


class Row(NamedTuple):
    """``path`` is where its details are, if there are any."""

    name: str
    cost: str
    turns: str
    tokens: str
    path: str = ""


@blueprint.get("")
def index() -> str:
    tenant, months, usage = shown_tenant(), _months(), parts().admin.usage
    usage.refresh(months.month)
    by_day = usage.by("day", months.month, tenant.id)
    total = _sum(by_day)
    return render_template(
        "admin/usage.html",
        tenant=tenant,
        months=months,
        query=_query(tenant, months),
        figures=(
            ("Cost", dollars(total.cost_microusd)),
            ("Messages", f"{total.turns:,}"),
            ("Tokens", f"{total.tokens:,}"),
        ),
        plot_of_days=_plot(by_day, months),
        tenants=_tenant_rows(usage.by_tenant(months.month, MOST_SHOWN), months) if tenant.id is None else [],
        users=_user_rows(usage.by_user(months.month, tenant.id, MOST_SHOWN)) if tenant.id else [],
        models=[_row(line) for line in usage.by("model", months.month, tenant.id)],
        agents=[_row(line) for line in usage.by("agent", months.month, tenant.id)],
    )


@blueprint.get("/users")
def users() -> str:
    tenant, months = shown_tenant(), _months()
    begins_after = after(str) or ("",)
    found = parts().admin.usage.users(months.month, tenant.id, str(begins_after[0]), PAGE_ROWS + 1)
    return _list_page("Users", "/admin/usage/users", _user_rows(found), tenant, months)


@blueprint.get("/tenants")
def tenants() -> str:
    require_operator()
    months, usage = _months(), parts().admin.usage
    usage.refresh(months.month)
    begins_after = after(str) or ("",)
    found = usage.tenants(months.month, str(begins_after[0]), PAGE_ROWS + 1)
    rows = _tenant_rows(found, months)
    return _list_page("Tenants", "/admin/usage/tenants", rows, ShownTenant(None, ""), months)


def _list_page(what: str, path: str, rows: Sequence[Row], tenant: ShownTenant, months: Months) -> str:
    return render_template(
        "admin/usage_list.html",
        what=what,
        path=path,
        page=page_of(rows, lambda row: (row.name,)),
        tenant=tenant,
        months=months,
        query=_query(tenant, months),
    )


def _months() -> Months:
    """The one that the address names, or this one. There is none before the first use, nor after this one."""
    now, first_day = utc_now().date(), parts().admin.usage.first_day()
    this = now.replace(day=1)
    first = min(this, date.fromisoformat(first_day).replace(day=1)) if first_day else this
    asked = query_text("month", max_chars=7)
    if asked and not WRITTEN_MONTH.fullmatch(asked):
        raise BadRequest("A month is written as 2026-11.")
    shown = date.fromisoformat(f"{asked}-01") if asked else this
    before, following = (
        (shown - timedelta(days=1)).replace(day=1),
        (shown + timedelta(days=31)).replace(day=1),
    )
    return Months(
        Month(shown),
        _written(shown),
        _written(before) if before >= first else "",
        _written(following) if following <= this else "",
    )


def _written(month: date) -> str:
    return f"{month:%Y-%m}"


def _query(tenant: ShownTenant, months: Months) -> dict[str, str]:
    """What links to other pages of usage keep."""
    return {"month": months.this, **({"tenant": tenant.name} if viewer().is_operator else {})}


def _plot(by_day: Sequence[UsageLine], months: Months) -> Plot:
    cost = {line.name: line.used.cost_microusd / 1_000_000 for line in by_day}
    today = utc_now().date().isoformat()
    days = [day for day in months.month.days if day <= today]
    labels = [f"{date.fromisoformat(day):%-d %b}" for day in days]
    series = [Series("Dollars", [cost.get(day, 0.0) for day in days])]
    return bar_plot(f"Dollars a day, {months.in_words}", labels, series, "{:,.2f}".format)


def _sum(lines: Sequence[UsageLine]) -> Used:
    return Used(
        sum(line.used.turns for line in lines),
        sum(line.used.tokens for line in lines),
        sum(line.used.cost_microusd for line in lines),
    )


def _row(line: UsageLine, name: str = "", path: str = "") -> Row:
    used = line.used
    name = name or line.name or "unknown"
    return Row(name, dollars(used.cost_microusd), f"{used.turns:,}", f"{used.tokens:,}", path)


def _user_rows(lines: Sequence[UsageLine]) -> list[Row]:
    return [
        _row(line, path=f"/admin/users/{line.id}") if line.name else _row(line, "erased") for line in lines
    ]


def _tenant_rows(lines: Sequence[UsageLine], months: Months) -> list[Row]:
    return [_row(line, path=_tenant_path(line.name, months)) for line in lines]


def _tenant_path(name: str, months: Months) -> str:
    return f"/admin/usage?{urlencode({'month': months.this, 'tenant': name})}"
