"""`/admin`: how it stands, at a glance, and which pages there are."""

from __future__ import annotations

from flask import Blueprint, render_template

from agentapp.guardrails.wording import dollars
from agentapp.storage.usage_reports import Month
from agentapp.web.admin.isolation import score_of_last_hour
from agentapp.web.admin.viewer import viewer
from agentapp.web.parts import now, parts, utc_now

MOST_COUNTED = 50  # there are pages for the rest

blueprint = Blueprint("overview", __name__)


@blueprint.get("")
def index() -> str:
    who, stores = viewer(), parts().admin
    month, most = Month(utc_now().date().replace(day=1)), MOST_COUNTED + 1
    stores.usage.refresh(month)
    spent = sum(line.used.cost_microusd for line in stores.usage.by("model", month, who.tenant_id))
    return render_template(
        "admin/overview.html",
        at_a_glance=(
            ("Isolation, the last hour", score_of_last_hour(who, now())),
            ("Breakers tripped", _counted(len(stores.breakers.page("open", who.tenant_id, None, most)))),
            ("Turns running", _counted(len(stores.running_turns.listed(who.tenant_id, None, most)))),
            (f"Spent in {month.first:%B}", dollars(spent)),
        ),
    )


def _counted(count: int) -> str:
    return f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)
