"""The user's own page: logins, password, what was used, and which limits there are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from string import ascii_lowercase
from types import MappingProxyType
from typing import NamedTuple

from flask import Blueprint, Response, g, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, GuardrailRefused, WrongPassword
from agentapp.guardrails.guard import Meter
from agentapp.guardrails.limit_changes import OFF, LimitInForce
from agentapp.guardrails.wording import dollars, megabytes
from agentapp.isolation import UserScope
from agentapp.storage.logins import LOGINS_SHOWN, OwnLogin
from agentapp.storage.usage_days import Used
from agentapp.web.audit_notes import password_tried
from agentapp.web.auth import login_token, origin, start_login
from agentapp.web.browsers import browser_in_words
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import field
from agentapp.web.known_browser import remember_browser
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts, utc_now
from agentapp.web.plots import Plot, Series, bar_plot
from agentapp.web.problems import answer_with_page

MAX_PASSWORD_CHARS = 4096
NOTICES: Mapping[str, str] = MappingProxyType(
    {
        "password": "Your password was changed. All other logins have ended.",
        "login": "That login has ended.",
        "logins": "All other logins have ended.",
        "chats": "Your chats were deleted.",
    }
)

blueprint = Blueprint("account", __name__, url_prefix="/account")


class LoginRow(NamedTuple):
    login: OwnLogin
    browser: str


class LimitRow(NamedTuple):
    name: str
    limit: str
    used: str


class UsageView(NamedTuple):
    month: str
    figures: tuple[tuple[str, str], ...]
    plot: Plot
    before: str


@blueprint.get("")
def show() -> str:
    return _page(notice=NOTICES.get(request.args.get("done", ""), ""))


@blueprint.post("/password")
def change_password() -> ResponseReturnValue:
    scope = user_scope()
    old = field("old_password", max_chars=MAX_PASSWORD_CHARS)
    new = field("new_password", max_chars=MAX_PASSWORD_CHARS)
    try:
        with password_tried(g.user.name):
            token = parts().accounts.change_password(scope, old, new, origin())
    except (WrongPassword, BadRequest, GuardrailRefused) as error:
        if not wants_page():
            raise
        return answer_with_page(_page(password_problem=str(error)), error)
    start_login(g.user, token)
    return remember_browser(_done("password"), g.user.name, None)


@blueprint.post("/logins/<login_id>/end")
def end_login(login_id: str) -> ResponseReturnValue:
    parts().logins.end(user_scope(), login_id)
    return _done("login")


@blueprint.post("/logins/end-others")
def end_other_logins() -> ResponseReturnValue:
    parts().logins.end_others(user_scope(), login_token() or "")
    return _done("logins")


def _done(what: str) -> Response:
    return redirect(f"/account?done={what}", 303, Response)  # type: ignore[return-value]


def _page(notice: str = "", password_problem: str = "") -> str:
    scope = user_scope()
    logins, how_many = parts().logins.of(scope, login_token() or "")
    return render_template(
        "account.html",
        logins=[LoginRow(login, browser_in_words(login.browser)) for login in logins],
        more_logins=max(0, how_many - LOGINS_SHOWN),
        usage=_usage(scope, utc_now().date()),
        limits=_limits(scope),
        chats_kept_days=parts().admin.retention.tenant(scope.tenant_id).chats.days,
        notice=notice,
        password_problem=password_problem,
    )


def _usage(scope: UserScope, today: date) -> UsageView:
    """This month's days, and the month before in one sentence."""
    first = today.replace(day=1)
    first_before = (first - timedelta(days=1)).replace(day=1)
    by_day = parts().own_usage.by_day(scope, first_before, today)
    days = [first + timedelta(days=n) for n in range(today.day)]
    cost = [by_day[day].cost_microusd / 1_000_000 if day in by_day else 0.0 for day in days]
    labels = [day.strftime("%-d %b") for day in days]
    this_month = _sum([used for day, used in by_day.items() if day >= first])
    before = _sum([used for day, used in by_day.items() if day < first])
    return UsageView(
        month=first.strftime("%B %Y"),
        figures=(
            ("Messages", f"{this_month.turns:,}"),
            ("Tokens", f"{this_month.tokens:,}"),
            ("Cost", dollars(this_month.cost_microusd)),
        ),
        plot=bar_plot(f"Dollars a day, {first:%B %Y}", labels, [Series("Dollars", cost)], "{:,.2f}".format),
        before=f"In {first_before:%B}: {before.turns:,} messages, {dollars(before.cost_microusd)}.",
    )


def _sum(used: list[Used]) -> Used:
    return Used(
        sum(each.turns for each in used),
        sum(each.tokens for each in used),
        sum(each.cost_microusd for each in used),
    )


def _limits(scope: UserScope) -> list[LimitRow]:
    meters = {meter.scope: meter for meter in parts().turns.kit.guardrails.meters(scope)}
    row = parts().admin.limits.find("user", scope.user_id, scope.tenant_id)
    used = {"budget": _budget_used(meters.get("user"))}
    rows = [
        LimitRow(each.limit.words, _limit_in_words(each), used.get(each.limit.name, ""))
        for each in row.limits
    ]
    if (tenant := meters.get("tenant")) is not None:
        rows.append(
            LimitRow("Dollars a month, all of your organisation", dollars(tenant.limit), _budget_used(tenant))
        )
    for meter in parts().room.standing(scope).meters:
        of = "Storage" if meter.scope == "user" else "Storage, all of your organisation"
        rows.append(LimitRow(of, megabytes(meter.limit), megabytes(meter.used)))
    return rows


def _limit_in_words(limit: LimitInForce) -> str:
    """Such as "60 a minute" or "10 in 15 minutes"."""
    if limit.value == OFF:
        return "no limit"
    if limit.limit.name == "budget":
        return f"${limit.value}"
    count, _, per = limit.value.partition("/")
    if not per:
        return count
    times = per.rstrip(ascii_lowercase)
    return f"{count} in {times} {per[len(times) :]}" if times else f"{count} a {per}"


def _budget_used(meter: Meter | None) -> str:
    return dollars(meter.used) if meter is not None else ""
