"""The processes that serve: what each tells of itself, and what becomes of the row of one that is gone."""

from __future__ import annotations

from datetime import timedelta

from flask import Flask
from sqlalchemy import select, update

from agentapp.isolation import RequestScope, new_id
from agentapp.storage.operator_models import WorkerRow
from agentapp.storage.values import utc_now
from agentapp.storage.workers import DROPPED_AFTER, GONE_AFTER
from agentapp.web.parts import Parts
from tests.support.users import person


def age(parts: Parts, worker: str, by: timedelta) -> None:
    with parts.db.writing() as db:
        db.execute(update(WorkerRow).where(WorkerRow.id == worker).values(seen_at=utc_now() - by))


def workers(parts: Parts) -> list[str]:
    with parts.db.writing() as db:
        return sorted(db.scalars(select(WorkerRow.id)))


def test_a_worker_tells_what_it_has_and_how_much_there_may_be(app: Flask, parts: Parts) -> None:
    operator = person(app, "otto", role="operator")
    assert "No worker has reported yet" in operator.get("/admin/workers").text
    parts.report_worker.run(0.0)
    page = operator.get("/admin/workers").text
    assert f"of {parts.db.pool_size}</td>" in page
    assert f"0 of {parts.turns.slots.total}</td>" in page
    assert ">running</span>" in page
    assert " MB</td>" in page
    assert '<td class="right">0 MB</td>' not in page


def test_a_worker_that_is_silent_is_gone_and_then_dropped_by_any_other(any_app: Flask) -> None:
    parts: Parts = any_app.extensions["agentapp"]
    operator, store, now = person(any_app, "otto", role="operator"), parts.admin.workers, utc_now()
    for name in ("dying", "living"):
        store.report(name, "a host", 7, now, {"turns": 1})
    age(parts, "dying", GONE_AFTER + timedelta(seconds=1))
    with parts.binder.bound(RequestScope(request_id=new_id())):
        assert [(each.id, each.is_gone) for each in store.listed(None, 9)] == [
            ("dying", True),
            ("living", False),
        ]
        (second,) = store.listed(("a host", 7, "dying"), 9)
        assert (second.id, second.number("turns"), second.number("of another version")) == ("living", 1, 0)
    page = operator.get("/admin/workers").text
    assert page.count(">gone</span>") == page.count(">running</span>") == 1
    age(parts, "dying", DROPPED_AFTER + timedelta(seconds=1))
    store.report("living", "a host", 7, now, {"turns": 1})
    assert workers(parts) == ["living"]


def test_a_worker_that_ends_takes_its_row_with_it(parts: Parts) -> None:
    parts.report_worker.run(0.0)
    assert len(workers(parts)) == 1
    parts.close()
    assert workers(parts) == []
    parts.db.close()
