"""The processes that serve, as each tells of itself; and those that tell nothing any more."""

from __future__ import annotations

from datetime import timedelta

from flask import Flask
from sqlalchemy import select, update

from agentapp import build
from agentapp.isolation import RequestScope, new_id
from agentapp.storage.engines import pool_size
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.conditions import SILENT_AFTER
from agentapp.telemetry.jobs import ReportWorker
from agentapp.web.parts import Parts
from tests.support.times import utc_now
from tests.support.users import Person, person


def report(parts: Parts) -> None:
    """As the heartbeat does."""
    (found,) = [each.job for each in parts.turns.heartbeat.jobs if isinstance(each.job, ReportWorker)]
    found.run(0.0)


def workers(parts: Parts) -> list[str]:
    with parts.db.writing() as db:
        return sorted(db.scalars(select(WorkerRow.id)))


def test_a_worker_tells_what_it_has_and_how_much_there_may_be(parts: Parts, operator: Person) -> None:
    assert "No worker has reported yet" in operator.get("/admin/workers").text
    report(parts)
    page = operator.get("/admin/workers").text
    assert f">{build.NAME}</small>" in page
    assert f"of {pool_size(parts.db.engine)}</td>" in page
    assert f"0 of {parts.turns.slots.total}</td>" in page
    assert ">running</span>" in page
    assert " MB</td>" in page
    assert '<td class="right">0 MB</td>' not in page


def test_a_worker_that_reports_nothing_any_more_is_shown_as_silent(any_app: Flask) -> None:
    parts: Parts = any_app.extensions["agentapp"]
    operator, store, now = person(any_app, "otto", role="operator"), parts.admin.workers, utc_now()
    for name in ("dying", "living"):
        store.report(name, "a host", 7, now, {"turns": 1})
    long_ago = utc_now() - SILENT_AFTER - timedelta(seconds=1)
    with parts.db.writing() as db:
        db.execute(update(WorkerRow).where(WorkerRow.id == "dying").values(seen_at=long_ago))
    with parts.binder.bound(RequestScope(request_id=new_id())):
        listed = [(each.id, each.is_silent) for each in store.listed(None, 9)]
        assert listed == [("dying", True), ("living", False)]
        (second,) = store.listed(("a host", 7, "dying"), 9)
        assert (second.id, second.number("turns"), second.number("of another version")) == ("living", 1, 0)
    page = operator.get("/admin/workers").text
    assert page.count(">silent</span>") == page.count(">running</span>") == 1


def test_a_worker_of_a_version_that_told_no_build_is_shown_as_older(parts: Parts, operator: Person) -> None:
    report(parts)
    with parts.db.writing() as db:
        db.execute(update(WorkerRow).values(build=None, knows_revision=None))
    assert ">older</small>" in operator.get("/admin/workers").text


def test_a_worker_that_ends_takes_its_row_with_it(parts: Parts) -> None:
    parts.turns.heartbeat.wake()
    report(parts)
    assert len(workers(parts)) == 1
    parts.close()
    assert workers(parts) == []
    parts.db.close()
