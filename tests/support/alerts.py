"""Alerts as a worker raises and stores them."""

from __future__ import annotations

from agentapp.isolation import RequestScope
from agentapp.telemetry.alerts import StoredAlert
from agentapp.web.parts import Parts


def beat(parts: Parts) -> None:
    """Every job of the worker's heartbeat once, due or not."""
    for thread in parts.turns.heartbeat.threads:
        for scheduled in thread.jobs:
            scheduled.last_run = float("-inf")
        thread.beat()


def open_alerts(parts: Parts) -> dict[str, StoredAlert]:
    """Those in the database that nobody has acknowledged, by their kinds; of each kind there is one."""
    with parts.binder.bound(RequestScope(request_id="r")):
        found = [shown.alert for shown in parts.admin.alerts.open(None, None, 1000)]
    assert len({alert.kind for alert in found}) == len(found), found
    return {alert.kind: alert for alert in found}
