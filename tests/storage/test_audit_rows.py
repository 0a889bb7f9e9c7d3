"""The audit log in the database: nothing changes a row, and every filter finds its rows by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import exc, text

from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.audit_log import AuditEntry, AuditLog
from agentapp.storage.audit_rows import AN_OPERATOR, AuditFilter, AuditRows, Place
from agentapp.storage.db import Database
from bench.many_rows import BEFORE, NUMBERS
from tests.support.audit_log import rows
from tests.support.statements import statements_noted
from tests.support.users import PASSWORD

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANY = 20_000
INSERT = (
    "INSERT INTO audit_log (at, tenant_id, user_id, action, subject, request_id, detail) {numbers} SELECT"
    " {at}, 't' || (n % 20), 'u' || (n % 40), 'a' || (n % 7), 'user:u' || (n % 40), 'r' || n, '{{}}'"
    " FROM numbers WHERE {yes}"
)
FILTERS = [
    AuditFilter(tenant_id, action, user_id, subject, request_id, first_day, first_day)
    for tenant_id, action, user_id, subject, request_id, first_day in product(
        (None, "t1"), ("", "a1"), ("", "u1"), ("", "user:u1"), ("", "r1"), (None, date(2026, 3, 1))
    )
]


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    binder = ThreadBinder()
    made = Database(database_url, binder)
    with binder.bound(RequestScope(request_id="a-request")):
        yield made
    made.close()


def add(db: Database, at: datetime, action: str = "signed-in", **more: Any) -> None:
    AuditLog(db).add(AuditEntry(action, at=at, **more))


def test_no_row_can_be_changed(db: Database) -> None:
    add(db, NOON, tenant_id="t", user_id="u")
    for change in ("action = 'signed-out'", "user_id = NULL", "at = at", "detail = '{}'", "id = id + 1"):
        with pytest.raises(exc.DBAPIError, match="append-only"), db.writing() as session:
            session.execute(text(f"UPDATE audit_log SET {change}"))
    (row,) = rows(db)
    assert (row.action, row.user_id, row.at) == ("signed-in", "u", NOON)


def test_rows_go_by_their_age(db: Database) -> None:
    """The one change that the table allows."""
    for days in range(3):
        add(db, NOON + timedelta(days=days))
    with db.writing() as session:
        session.execute(text("DELETE FROM audit_log WHERE at < :at"), {"at": "2026-03-02 12:00:00.000000"})
    assert [row.at for row in rows(db)] == [NOON + timedelta(days=days) for days in (1, 2)]


def test_pages_come_one_after_the_other_newest_first_with_no_row_twice(db: Database) -> None:
    times = [NOON + timedelta(seconds=n % 5) for n in range(23)]
    for at in times:
        add(db, at)
    found, after = [], None
    while page := AuditRows(db).page(AuditFilter(None), after, 4):
        found += [record.place for record in page]
        after = page[-1].place
    assert found == sorted({Place(row.at, row.id) for row in rows(db)}, reverse=True)
    assert len(found) == 23


def test_a_day_begins_and_ends_at_midnight_in_utc(db: Database) -> None:
    midnight, moment = datetime(2026, 3, 1, tzinfo=UTC), timedelta(microseconds=1)
    next_midnight = midnight + timedelta(days=1)
    for at in (midnight - moment, midnight, next_midnight - moment, next_midnight):
        add(db, at)
    wanted = AuditFilter(None, first_day=date(2026, 3, 1), last_day=date(2026, 3, 1))
    found = [record.at for record in AuditRows(db).page(wanted, None, 10)]
    assert found == [next_midnight - moment, midnight]


def test_all_that_a_filter_asks_for_must_hold(db: Database) -> None:
    """Whichever index finds the rows."""
    values = list(product(("t1", "t2"), ("a1", "a2"), ("u1", "u2"), ("user:u1", "user:u2"), ("r1", "r2")))
    for tenant_id, action, user_id, subject, request_id in values:
        add(db, NOON, action, tenant_id=tenant_id, user_id=user_id, subject=subject, request_id=request_id)
    add(db, NOON, "a1", request_id="r1", subject="user:u1")
    for wanted in FILTERS:
        asked = (wanted.tenant_id, wanted.action, wanted.user_id, wanted.subject, wanted.request_id)
        expected = sum(
            all(not each or each == value for each, value in zip(asked, row, strict=True))
            for row in [*values, ("", "a1", "", "user:u1", "r1")]
        )
        assert len(AuditRows(db).page(wanted, None, 99)) == expected, wanted


def test_names_are_those_of_now_and_an_erased_user_has_only_an_id(db: Database) -> None:
    ann = Accounts(db).add("ann", PASSWORD, tenant="acme")
    add(db, NOON, tenant_id=ann.tenant_id, user_id=ann.id, subject=f"user:{ann.id}")
    add(db, NOON, tenant_id=ann.tenant_id, user_id="gone", subject="user:gone")
    for reader in (None, ann.tenant_id):
        erased, hers = AuditRows(db).page(AuditFilter(reader, action="signed-in"), None, 9)
        assert (hers.user, hers.subject_user, hers.tenant) == ("ann", "ann", "acme")
        assert (erased.user_id, erased.user, erased.subject, erased.subject_user) == (
            "gone",
            "",
            "user:gone",
            "",
        )


def test_an_admin_is_not_told_who_of_another_tenant_it_was(db: Database) -> None:
    olga = Accounts(db).add("olga", PASSWORD, tenant="staff", role="operator")
    add(db, NOON, "role-changed", tenant_id="acme", user_id=olga.id, subject=f"user:{olga.id}")
    (seen,) = AuditRows(db).page(AuditFilter("acme"), None, 9)
    assert (seen.user_id, seen.user, seen.subject, seen.subject_user) == ("", AN_OPERATOR, "", AN_OPERATOR)
    assert olga.id not in repr(seen)
    (full,) = AuditRows(db).page(AuditFilter(None, action="role-changed"), None, 9)
    assert (full.user, full.subject_user) == ("olga", "olga")


def index_of(wanted: AuditFilter) -> str:
    narrow = ((wanted.request_id, "request"), (wanted.user_id, "user"), (wanted.subject, "subject"))
    for given, name in narrow:
        if given:
            return f"ix_audit_log_{name}"
    if wanted.tenant_id is None:
        return "ix_audit_log_action_at" if wanted.action else "ix_audit_log_at"
    return "ix_audit_log_tenant_action" if wanted.action else "ix_audit_log_tenant"


def plans(db: Database, wanted: AuditFilter) -> list[str]:
    """Of the statements on the log, for the first page and for a later one."""
    sent: list[tuple[str, Any]] = []
    with statements_noted(lambda statement, values: sent.append((statement, values)), db):
        for after in (None, Place(NOON, 10_000)):
            AuditRows(db).page(wanted, after, 51)
    explain = "EXPLAIN QUERY PLAN" if db.engine.dialect.name == "sqlite" else "EXPLAIN"
    with db.engine.connect() as connection:
        return [
            "\n".join(
                str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {statement}", values).all()
            )
            for statement, values in sent
            if "FROM audit_log" in statement
        ]


def test_every_filter_finds_its_rows_by_the_index_of_its_narrowest_part(
    db: Database,
) -> None:
    dialect = db.engine.dialect.name
    yes = "1" if dialect == "sqlite" else "true"
    at = BEFORE[dialect].format(seconds=f"({MANY} - n)")
    insert = text(INSERT.format(numbers=NUMBERS[dialect], at=at, yes=yes))
    with db.writing() as session:
        session.execute(insert, {"count": MANY, "now": f"{NOON:%Y-%m-%d %H:%M:%S}"})
        session.execute(text("ANALYZE audit_log"))
    for wanted in FILTERS:
        for plan in plans(db, wanted):
            assert index_of(wanted) in plan, (wanted, plan)
            assert "Seq Scan" not in plan, (wanted, plan)
            # A database may find it cheaper to sort the few rows that have one request, user or subject.
            if not (wanted.request_id or wanted.user_id or wanted.subject):
                assert not re.search("TEMP B-TREE|Sort", plan), (wanted, plan)
