"""`/admin/alerts`: what somebody has to look at, until somebody has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from flask import Blueprint, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest
from agentapp.storage.alerts import MOST_COUNTED, ShownAlert
from agentapp.telemetry.alerts import Severity, StoredAlert
from agentapp.web.admin.paging import NO_SUCH_PAGE, PAGE_ROWS, Key, after, page_of
from agentapp.web.admin.viewer import viewer
from agentapp.web.hooks import user_scope
from agentapp.web.parts import parts

PATH = "/admin/alerts"
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "cross-request-leak": "Something leaked from one request into another",
        "instance-reused": "An agent was used for a second turn",
        "reset-slow": "Agents took long to forget a turn",
        "isolation-score": "The isolation score is below 1",
        "provider-breaker-open": "The model does not answer",
        "provider-setup": "The model's provider is not set up correctly",
        "budget-90": "A budget is nearly used up",
        "unsettled-reservations": "Turns are not settled",
        "heartbeat-late": "The background work of a worker is late",
        "clock-wrong": "The clock of a host is wrong",
    }
)
TONES: Mapping[Severity, str] = MappingProxyType({"critical": "danger", "error": "danger", "warning": "warn"})
EPOCH = datetime.fromtimestamp(0, UTC)
OPEN, DONE = "open", "done"

blueprint = Blueprint("alerts", __name__, url_prefix="/alerts")


class Delivery(NamedTuple):
    """How it stands with the webhook, in words; ``at`` comes after them."""

    words: str
    at: datetime | None = None
    problem: str = ""


@blueprint.get("")
def index() -> str:
    page = page_of(_rows(), _key_of)
    return render_template(
        "admin/alerts.html",
        page=page,
        open=[row for row in page.rows if row.alert.acknowledged_at is None],
        done=[row for row in page.rows if row.alert.acknowledged_at is not None],
        titles=TITLES,
        tones=TONES,
        delivery=_delivery,
        notice="The alert is acknowledged." if "done" in request.args else "",
    )


@blueprint.post("/<id:alert_id>/acknowledge")
def acknowledge(alert_id: str) -> ResponseReturnValue:
    parts().admin.alerts.acknowledge(alert_id, viewer().tenant_id, user_scope())
    return redirect(f"{PATH}?done", 303)


def badge() -> str:
    """How many are open, for the navigation; nothing if none is."""
    count = parts().admin.alerts.open_count(viewer().tenant_id)
    return f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count or "")


def _rows() -> list[ShownAlert]:
    """Those that are open and then the others, as one list, from where the page begins. One more than it has
    if there is another page.
    """
    alerts, tenant_id, count = parts().admin.alerts, viewer().tenant_id, PAGE_ROWS + 1
    which, last = _place(after(str, int, str))
    found = [] if which == DONE else alerts.open(tenant_id, last, count)
    if len(found) < count:
        found += alerts.acknowledged(tenant_id, last if which == DONE else None, count - len(found))
    return found


def _key_of(row: ShownAlert) -> Key:
    alert = row.alert
    which, at = (OPEN, alert.last_at) if alert.acknowledged_at is None else (DONE, alert.acknowledged_at)
    return which, (at - EPOCH) // timedelta(microseconds=1), alert.id


def _place(key: Key | None) -> tuple[str, tuple[datetime, str] | None]:
    if key is None:
        return OPEN, None
    which, at, id = key
    try:
        return str(which), (EPOCH + timedelta(microseconds=int(at)), str(id))
    except OverflowError:
        raise BadRequest(NO_SUCH_PAGE) from None


def _delivery(alert: StoredAlert) -> Delivery:
    problem = alert.delivery_problem
    if alert.next_delivery_at is not None:
        if not problem:
            return Delivery("being sent")
        return Delivery(f"not taken after {_times(alert)}, again", alert.next_delivery_at, problem)
    if problem:
        end = "given up" if alert.acknowledged_at is None else "not sent, and no longer tried,"
        return Delivery(f"{end} after {_times(alert)}", problem=problem)
    if alert.delivered_at is not None:
        return Delivery("sent", alert.delivered_at)
    return Delivery("not sent" if parts().settings.alert_webhook else "none is set")


def _times(alert: StoredAlert) -> str:
    return "one try" if alert.delivery_attempts == 1 else f"{alert.delivery_attempts} tries"
