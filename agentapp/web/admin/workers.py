"""`/admin/workers`: the processes that serve, on all machines."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from flask import Blueprint, render_template

from agentapp.guardrails.wording import clock, megabytes
from agentapp.storage.workers import Worker
from agentapp.telemetry.conditions import GONE_AFTER, SILENT_AFTER
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import require_operator
from agentapp.web.parts import parts, utc_now

LATE_SECONDS = 2.0  # of a heartbeat: as long as its pause when there is nothing to do

blueprint = Blueprint("workers", __name__, url_prefix="/workers")
blueprint.before_request(require_operator)


class WorkerRow(NamedTuple):
    worker: Worker
    up: str
    seen: str
    memory: str
    lag: str
    is_late: bool


@blueprint.get("")
def index() -> str:
    now = utc_now()
    begins_after = after(str, int, str)
    found = parts().admin.workers.listed(begins_after, PAGE_ROWS + 1)
    page = page_of(
        [_row(worker, now) for worker in found],
        lambda row: (row.worker.host, row.worker.pid, row.worker.id),
    )
    return render_template(
        "admin/workers.html",
        page=page,
        silent_seconds=SILENT_AFTER.total_seconds(),
        gone_minutes=GONE_AFTER.total_seconds() / 60,
    )


def _row(worker: Worker, now: datetime) -> WorkerRow:
    lag = worker.number("heartbeat_lag")
    return WorkerRow(
        worker,
        up=clock((worker.seen_at - worker.started_at).total_seconds()),
        seen=clock((now - worker.seen_at).total_seconds()),
        memory=megabytes(int(worker.number("rss_bytes"))),
        lag=f"{lag:.2f} s",
        is_late=lag > LATE_SECONDS,
    )
