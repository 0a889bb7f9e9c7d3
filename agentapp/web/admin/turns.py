"""`/admin/turns`: the turns that run now, in all workers, and how to stop one."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from flask import Blueprint, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest
from agentapp.guardrails.wording import clock
from agentapp.storage.running_turns import RunningTurnFacts
from agentapp.web.admin.paging import NO_SUCH_PAGE, PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import viewer
from agentapp.web.hooks import user_scope
from agentapp.web.parts import parts, utc_now

ASKED = "The turn was asked to stop. It ends within a second if its worker is alive."

blueprint = Blueprint("running_turns", __name__, url_prefix="/turns")


class TurnRow(NamedTuple):
    """``lease`` is how long the turn counts as alive without news; empty if that time is over."""

    turn: RunningTurnFacts
    age: str
    lease: str


@blueprint.get("")
def index() -> str:
    now = utc_now()
    found = parts().admin.running_turns.listed(viewer().tenant_id, _begins_after(), PAGE_ROWS + 1)
    return render_template(
        "admin/turns.html",
        page=page_of([_row(turn, now) for turn in found], _key),
        front_agent=parts().turns.kit.team.front.name,
        notice=ASKED if request.args.get("done") else "",
    )


@blueprint.post("/<id:turn_id>/stop")
def stop(turn_id: str) -> ResponseReturnValue:
    whose, worker = parts().admin.running_turns.stop(user_scope(), viewer().tenant_id, turn_id)
    parts().turns.hurry_stop(whose, turn_id, worker)
    return redirect("/admin/turns?done=stop", 303)


def _row(turn: RunningTurnFacts, now: datetime) -> TurnRow:
    left = (turn.lease_until - now).total_seconds()
    return TurnRow(turn, clock((now - turn.started_at).total_seconds()), clock(left) if left > 0 else "")


def _key(row: TurnRow) -> tuple[str, str]:
    return row.turn.started_at.isoformat(), row.turn.id


def _begins_after() -> tuple[datetime, str] | None:
    key = after(str, str)
    if key is None:
        return None
    try:
        began = datetime.fromisoformat(str(key[0]))
    except ValueError:
        raise BadRequest(NO_SUCH_PAGE) from None
    if began.tzinfo is None:
        raise BadRequest(NO_SUCH_PAGE)
    return began, str(key[1])
