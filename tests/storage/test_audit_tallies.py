"""What anybody can do as often as they like has few rows in the audit log, and none of it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.isolation import RequestScope, ThreadBinder, UserScope, new_id
from agentapp.storage.accounts import Accounts
from agentapp.storage.audit_log import AuditLog
from agentapp.storage.audit_tallies import (
    MOST_COUNTED,
    MOST_SUBJECTS,
    MOST_TENANTS,
    MOST_USERS,
    AuditTallies,
    Deed,
    _Minute,
)
from agentapp.storage.db import Database
from tests.support.audit_log import rows
from tests.support.statements import statements_noted
from tests.support.users import PASSWORD

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCOPE = RequestScope(request_id="a-request")
FEW = st.integers(0, 30)


class Clock:
    def __init__(self) -> None:
        self.now = NOON.timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    binder = ThreadBinder()
    made = Database(settings.database_url, binder)
    with binder.bound(SCOPE):
        yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tallies(db: Database, clock: Clock) -> AuditTallies:
    return AuditTallies(db, clock)


def user(name: str = "u", tenant: str = "t") -> UserScope:
    return UserScope(request_id=new_id(), tenant_id=tenant, user_id=name)


def counts(db: Database) -> list[int]:
    return [row.detail["count"] for row in rows(db)]


def test_the_first_time_has_its_row_at_once_and_those_after_it_share_one_a_minute(
    db: Database, tallies: AuditTallies, clock: Clock
) -> None:
    scopes = [user() for _ in range(120)]
    for scope in scopes:
        tallies.add(scope, "lookup-denied", "session:s")
        tallies.run(0.0)
        clock.now += 1
    assert counts(db) == [1, 60]
    tallies.end()
    first, second, third = rows(db)
    assert [row.detail["count"] for row in (first, second, third)] == [1, 60, 59]
    assert [row.at - NOON for row in (first, second, third)] == [
        timedelta(seconds=seconds) for seconds in (0, 60, 119)
    ]
    assert [row.request_id for row in (first, second, third)] == [scopes[n].request_id for n in (0, 1, 61)]


def test_nothing_is_lost_and_nothing_counted_twice(db: Database, tallies: AuditTallies, clock: Clock) -> None:
    for n in range(300):
        tallies.add(user(f"u{n % 7}", f"t{n % 3}"), "lookup-denied", f"session:{n % 40}")
        clock.now += 0.9
        if n % 5 == 0:
            tallies.run(0.0)
    for _ in range(2):
        tallies.end()
        assert sum(counts(db)) == 300


def test_what_cannot_be_stored_now_is_stored_later(
    db: Database, tallies: AuditTallies, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*anything: object) -> None:
        raise StorageUnavailable("away")

    for broken, name in ((Database, "reading"), (AuditLog, "add")):
        tallies.add_sign_in(SCOPE, "sign-in-failed", "ann")
        with monkeypatch.context() as patch:
            patch.setattr(broken, name, away)
            with pytest.raises(StorageUnavailable):
                tallies.run(0.0)
    tallies.add_sign_in(SCOPE, "sign-in-failed", "ann")
    tallies.run(0.0)
    assert counts(db) == [3]


def test_who_asks_for_everything_has_few_rows(db: Database, tallies: AuditTallies) -> None:
    asked = 5 * MOST_SUBJECTS
    for n in range(asked):
        tallies.add(user(), "lookup-denied", f"session:{n}")
    tallies.run(0.0)
    *own, rest = rows(db)
    assert [row.subject for row in own] == [f"session:{n}" for n in range(MOST_SUBJECTS)]
    assert (rest.tenant_id, rest.user_id, rest.subject) == ("t", "u", "")
    assert rest.detail == {"count": asked - MOST_SUBJECTS}


def test_users_of_a_flooded_tenant_are_summed_up_and_those_of_another_are_not(
    db: Database, tallies: AuditTallies
) -> None:
    for n in range(5 * MOST_USERS):
        tallies.add(user(f"u{n}", "flooded"), "lookup-denied", "session:s")
    tallies.add(user("quiet", "calm"), "lookup-denied", "session:s")
    tallies.run(0.0)
    assert [row.user_id for row in rows(db) if row.tenant_id == "calm"] == ["quiet"]
    *_, rest = [row for row in rows(db) if row.tenant_id == "flooded"]
    assert (rest.user_id, rest.detail) == (None, {"count": 4 * MOST_USERS})
    assert len(rows(db)) == MOST_USERS + 2


@given(st.lists(st.tuples(FEW, FEW, st.integers(0, 99)), max_size=400))
def test_the_rows_of_a_minute_are_bounded_and_each_is_what_was_done_or_what_that_is_a_part_of(
    done: list[tuple[int, int, int]],
) -> None:
    minute = _Minute(0)
    deeds = [Deed("lookup-denied", f"t{tenant}", f"u{n}-{tenant}", f"s{chat}") for tenant, n, chat in done]
    found = [minute.row_of(deed) for deed in deeds]
    assert len(set(found)) <= 1 + MOST_TENANTS * (1 + MOST_USERS * (1 + MOST_SUBJECTS))
    for deed, row in zip(deeds, found, strict=True):
        assert row.tenant_id in (deed.tenant_id, "")
        assert row.user_id in (deed.user_id, "")
        assert row.subject in (deed.subject, "")
        assert minute.row_of(deed) == row or row.subject == "", "what has a row keeps it"


def test_the_name_of_an_account_becomes_its_ids(db: Database, tallies: AuditTallies) -> None:
    ann = Accounts(db).add("ann", PASSWORD, tenant="acme")
    for name in ("ann", " ANN "):
        tallies.add_sign_in(SCOPE, "sign-in-failed", name)
    tallies.run(0.0)
    (row,) = rows(db, "sign-in-failed")
    assert (row.tenant_id, row.user_id, row.subject) == (ann.tenant_id, ann.id, f"user:{ann.id}")
    assert row.detail == {"count": 2}


def test_names_that_are_nobodys_are_one_row_without_any_name(db: Database, tallies: AuditTallies) -> None:
    for n in range(2 * MOST_COUNTED):
        tallies.add_sign_in(SCOPE, "sign-in-failed", f"nobody-{n}")
    tallies.add_sign_in(SCOPE, "sign-in-failed", "x" * 5_000)
    statements: list[str] = []
    with statements_noted(lambda statement, values: statements.append(statement), db):
        tallies.run(0.0)
    (row,) = rows(db)
    assert (row.tenant_id, row.user_id, row.subject) == (None, None, "")
    assert row.detail == {"count": 2 * MOST_COUNTED + 1}
    assert len([each for each in statements if "users" in each]) == 2, "however many there were"


def test_a_flood_of_one_action_leaves_room_for_the_others(db: Database, tallies: AuditTallies) -> None:
    for n in range(2 * MOST_COUNTED):
        tallies.add_sign_in(SCOPE, "sign-in-throttled", f"nobody-{n}")
    tallies.add(user(), "lookup-denied", "session:s")
    tallies.run(0.0)
    assert [row.subject for row in rows(db, "lookup-denied")] == ["session:s"]


def test_counting_asks_no_database(tallies: AuditTallies) -> None:
    statements: list[str] = []
    with statements_noted(lambda statement, values: statements.append(statement)):
        tallies.add(user(), "lookup-denied", "session:s")
        tallies.add_sign_in(SCOPE, "sign-in-failed", "ann")
    assert statements == []
