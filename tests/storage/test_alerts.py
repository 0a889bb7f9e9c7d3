"""Alerts in the database: one open row for each kind and subject, counted exactly, by several workers."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text

from agentapp.errors import NotFound
from agentapp.isolation import RequestScope, ThreadBinder, UserScope
from agentapp.storage.alerts import MOST_COUNTED, AlertStore
from agentapp.storage.db import Database
from agentapp.telemetry.alerts import SEVERITIES, Alert, StoredAlert
from tests.support.databases import only_sqlite
from tests.support.statements import statements_noted

WORKERS, ROUNDS = 4, 15


@pytest.fixture
def make_store(database_url: str) -> Iterator[Callable[..., AlertStore]]:
    """Each has a pool of its own, as each worker has."""
    opened: list[Database] = []

    def make(*, delivers: bool = False) -> AlertStore:
        opened.append(Database(database_url, ThreadBinder()))
        return AlertStore(opened[-1], delivers=delivers)

    yield make
    for db in opened:
        db.close()


@pytest.fixture
def store(make_store: Callable[..., AlertStore]) -> Iterator[AlertStore]:
    made = make_store()
    with made._db._binder.bound(RequestScope(request_id="r")):
        yield made


def acknowledger(tenant_id: str = "t") -> UserScope:
    return UserScope(request_id="r", tenant_id=tenant_id, user_id="someone")


def opened(store: AlertStore, tenant_id: str | None = None) -> list[StoredAlert]:
    return [shown.alert for shown in store.open(tenant_id, None, 1000)]


def test_an_alert_that_is_raised_again_is_counted_up_and_told_as_it_was_last(store: AlertStore) -> None:
    store.add([Alert("reset-slow", "6 s", request_id="one"), Alert("budget-90", "x", "user:u", "t")])
    store.add([Alert("reset-slow", "7 s", count=3, request_id="two")])
    found = {alert.kind: alert for alert in opened(store)}
    slow = found["reset-slow"]
    assert (slow.count, slow.detail, slow.request_id, slow.severity) == (4, "7 s", "two", "warning")
    assert slow.last_at > slow.first_at
    assert (found["budget-90"].count, found["budget-90"].tenant_id) == (1, "t")


def test_workers_that_store_the_same_alerts_at_once_count_exactly_and_never_wait_in_a_circle(
    make_store: Callable[..., AlertStore],
) -> None:
    subjects = [f"user:{n}" for n in range(20)]
    expected: Counter[str] = Counter()
    plans = []
    for worker in range(WORKERS):
        chance = random.Random(worker)
        plan = [chance.sample(subjects, 15) for _ in range(ROUNDS)]
        expected.update(subject for batch in plan for subject in batch)
        plans.append(plan)

    def work(plan: list[list[str]]) -> None:
        store = make_store()
        for batch in plan:
            store.add([Alert("budget-90", "it is nearly used up", subject, "t") for subject in batch])

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, plans))
    store = make_store()
    with store._db._binder.bound(RequestScope(request_id="r")):
        assert {alert.subject: alert.count for alert in opened(store)} == expected


def test_what_is_acknowledged_stays_and_the_next_one_is_a_new_row(store: AlertStore) -> None:
    store.add([Alert("reset-slow", "6 s")])
    (first,) = opened(store)
    store.acknowledge(first.id, None, acknowledger())
    assert opened(store) == []
    store.add([Alert("reset-slow", "8 s")])
    (second,) = opened(store)
    assert (second.count, second.id != first.id) == (1, True)
    ((done, _),) = store.acknowledged(None, None, 10)
    assert (done.id, done.acknowledged_by, done.detail) == (first.id, "someone", "6 s")


def test_acknowledging_is_in_the_audit_log_in_the_same_transaction_and_only_once(
    store: AlertStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([Alert("budget-90", "x", "user:u", "t")])
    (alert,) = opened(store)
    with monkeypatch.context() as patch:
        patch.setattr("agentapp.storage.alerts.add_entry", refuse)
        with pytest.raises(RuntimeError):
            store.acknowledge(alert.id, None, acknowledger())
    assert len(opened(store)) == 1, "there is no change without its entry"
    for _ in range(2):
        store.acknowledge(alert.id, None, acknowledger())
    with store._db.reading() as db:
        rows = db.execute(text("SELECT action, subject, user_id, tenant_id FROM audit_log")).all()
    assert rows == [("alert-acknowledged", f"alert:{alert.id}", "someone", "t")]


def refuse(*args: Any) -> None:
    raise RuntimeError("no room for an entry")


def test_an_admin_finds_counts_and_acknowledges_only_alerts_of_the_own_tenant(store: AlertStore) -> None:
    of = {"t": "user:t", "other": "user:other", None: ""}
    store.add([Alert("budget-90", "x", subject, tenant) for tenant, subject in of.items()])
    assert [alert.tenant_id for alert in opened(store, "t")] == ["t"]
    assert (store.open_count("t"), store.open_count(None)) == (1, 3)
    for alert in opened(store):
        if alert.tenant_id != "t":
            with pytest.raises(NotFound):
                store.acknowledge(alert.id, "t", acknowledger())
    store.acknowledge(next(a.id for a in opened(store) if a.tenant_id == "other"), None, acknowledger())
    assert store.acknowledged("t", None, 10) == []
    assert store.open_count(None) == 2


def test_what_concerns_several_tenants_is_for_operators_alone(store: AlertStore) -> None:
    store.add([Alert("reset-slow", "of t", "s", "t")])
    store.add([Alert("reset-slow", "of another", "s", "another")])
    assert opened(store, "t") == opened(store, "another") == []
    store.add([Alert("reset-slow", "of t", "s", "t")])
    assert opened(store, "t") == [], "it has been told of another one"
    assert [alert.count for alert in opened(store)] == [3]


def test_lists_go_on_after_the_last_row_that_was_seen(store: AlertStore) -> None:
    for n in range(5):
        store.add([Alert("budget-90", "x", f"user:{n}", "t")])
    first = opened(store)[:2]
    assert [alert.subject for alert in first] == ["user:4", "user:3"]
    rest = store.open(None, (first[-1].last_at, first[-1].id), 10)
    assert [shown.alert.subject for shown in rest] == ["user:2", "user:1", "user:0"]


def test_the_badge_counts_no_further_than_it_can_show(store: AlertStore) -> None:
    store.add([Alert("budget-90", "x", f"user:{n}", "t") for n in range(MOST_COUNTED + 20)])
    assert store.open_count("t") == MOST_COUNTED + 1
    assert {**dict.fromkeys(SEVERITIES, 0), "budget-90": MOST_COUNTED + 20} == store.open_by_kind()


@only_sqlite
@pytest.mark.parametrize("tenant_id", [None, "t"])
def test_every_query_of_the_page_finds_its_rows_by_an_index(store: AlertStore, tenant_id: str | None) -> None:
    store.add([Alert(kind, "x", tenant_id="t") for kind in SEVERITIES])
    seen: list[tuple[str, Any]] = []
    last = opened(store)[0]
    before: tuple[datetime, str] = (last.last_at, last.id)
    with statements_noted(lambda statement, values: seen.append((statement, values)), store._db):
        store.open(tenant_id, None, 51)
        store.open(tenant_id, before, 51)
        store.acknowledged(tenant_id, None, 51)
        store.acknowledged(tenant_id, before, 51)
        store.open_count(tenant_id)
        store.open_by_kind()
    queries = [(statement, values) for statement, values in seen if "FROM alerts" in statement]
    assert len(queries) == 6
    with store._db.engine.connect() as connection:
        for statement, values in queries:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
            used = [step for step in plan if re.search("alerts USING .*INDEX (ix|uq)_alerts_", step)]
            assert used, (statement, plan)
            sorts = [step for step in plan if "TEMP B-TREE" in step and "GROUP BY" not in step]
            assert not sorts, (statement, plan)
