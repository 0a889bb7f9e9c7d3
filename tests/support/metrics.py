"""What the metrics and the audit log say, as a test asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from agentapp.isolation import RequestScope
from agentapp.storage.operator_models import AuditRow
from agentapp.web.parts import Parts

SAMPLE = re.compile(r"^agentapp_(\w+?)(?:\{(.*)\})? (\S+)$", re.M)


def samples(text: str) -> Mapping[str, float]:
    """By name and the values of the labels, as in "refusals_total busy server"; those above zero."""
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        if float(value):
            found[" ".join([name, *re.findall(r'"([^"]*)"', labels)])] = float(value)
    return found


def counted(parts: Parts, *names: str) -> Mapping[str, float]:
    """Of the metrics with these names."""
    every = samples(parts.telemetry.metrics.exposition().decode())
    return {name: value for name, value in every.items() if name.split(" ")[0] in names}


def run_job(parts: Parts, name: str) -> None:
    """A job of the heartbeat, now."""
    (job,) = [each.job for each in parts.turns.heartbeat.jobs if each.job.name == name]
    with parts.binder.bound(RequestScope(request_id="heartbeat")):
        job.run(0.0)


def audited(parts: Parts, *actions: str) -> list[tuple[Any, ...]]:
    """Action, subject, tenant, request and detail of the rows of the audit log, in order."""
    columns = (AuditRow.action, AuditRow.subject, AuditRow.tenant_id, AuditRow.request_id, AuditRow.detail)
    query = select(*columns).where(AuditRow.action.in_(actions)).order_by(AuditRow.id)
    with parts.binder.bound(RequestScope(request_id="reader")), parts.db.reading() as db:
        return [tuple(row) for row in db.execute(query)]
