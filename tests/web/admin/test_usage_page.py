"""What was spent, as the admin pages tell it: sums by day, tenant, user, model and agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from agentapp.storage import usage_reports
from agentapp.storage.clock import DatabaseClock
from agentapp.storage.operator_models import UsageDay
from agentapp.storage.usage_reports import FINAL_AFTER, SUMMED_AGAIN_AFTER, Month, _is_due
from agentapp.web.parts import Parts
from tests.support.users import Person, person
from tests.web.admin.planted import usage

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
ROW = re.compile(
    r'<th scope="row" class="break">(?:<a[^>]*>)?([^<]+)(?:</a>)?</th>((?:<td class="right">[^<]*</td>)+)'
)


@pytest.fixture
def parts(any_app: Flask) -> Parts:
    found: Parts = any_app.extensions["agentapp"]
    return found


@pytest.fixture
def operator(any_app: Flask, monkeypatch: pytest.MonkeyPatch) -> Person:
    who = person(any_app, "otto", tenant="acme", role="operator")
    set_clock(monkeypatch, NOW)
    return who


def set_clock(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """For what is shown and added up; logins have their own."""
    monkeypatch.setattr(DatabaseClock, "utc_now", lambda _: now)


def add(parts: Parts, *rows: UsageDay) -> None:
    with parts.db.writing() as db:
        db.add_all(rows)


def tenant_of(parts: Parts, name: str, tenant: str) -> tuple[str, str]:
    user = parts.accounts.add(name, "a long enough password", tenant=tenant)
    return user.tenant_id, user.id


def sums(who: Person, path: str) -> Mapping[str, tuple[str, ...]]:
    """The first table rows of each name on a page."""
    answer = who.get(path)
    assert answer.status_code == 200, path
    return {name: tuple(re.findall(r">([^<]*)</td>", cells)) for name, cells in ROW.findall(answer.text)}


def test_sums_by_tenant_user_model_and_agent(parts: Parts, operator: Person) -> None:
    acme, ann = tenant_of(parts, "ann", "acme")
    globex, bob = tenant_of(parts, "bob", "globex")
    add(
        parts,
        usage(acme, ann, "2026-11-02", "desk", 1_000_000),
        usage(acme, ann, "2026-11-19", "maths", 2_000_000),
        usage(acme, "", "2026-11-03", "desk", 250_000),
        usage(globex, bob, "2026-11-30", "desk", 40_000_000),
        usage(acme, ann, "2026-10-31", "desk", 7_000_000),
    )
    everybody = sums(operator, "/admin/usage")
    assert everybody["acme"] == ("$3.25", "3", "2,940")
    assert everybody["desk-model"][0] == "$1.25", "a day that has not come is not added up"
    assert everybody["maths-agent"] == ("$2.00", "1", "980")
    own = sums(operator, "/admin/usage?tenant=acme")
    assert (own["ann"][0], own["erased"][0]) == ("$3.00", "$0.25")
    assert "bob" not in own
    october = operator.get("/admin/usage?month=2026-10&tenant=acme").text
    assert "Usage in October 2026" in october
    assert "<dd>$7.00</dd>" in october
    assert '<tr><th scope="row">31 Oct</th><td class="right">7.00</td></tr>' in october


def test_all_users_and_tenants_are_listed_by_name_a_page_at_a_time(
    parts: Parts, operator: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        tenant, user = tenant_of(parts, f"user-{n}", f"tenant-{n}")
        add(parts, usage(tenant, user, "2026-11-10", "desk", n * 1_000_000))
    monkeypatch.setattr("agentapp.web.admin.usage.PAGE_ROWS", 2)
    monkeypatch.setattr("agentapp.web.admin.paging.page_of.__defaults__", (2,))
    for path, first in (("/admin/usage/users", "otto"), ("/admin/usage/tenants", "acme")):
        found: dict[str, str] = {}
        following: str | None = path
        while following:
            page = operator.get(following).text
            found |= {name: cells[0] for name, cells in sums(operator, following).items()}
            more = re.search(r'rel="next" href="([^"]+)"', page)
            following = more[1].replace("&amp;", "&") if more else None
        assert list(found) == [first, *(f"{path[13:-1]}-{n}" for n in range(5))]
        assert list(found.values()) == ["$0.00", "$0.00", "$1.00", "$2.00", "$3.00", "$4.00"]


def test_months_lead_to_each_other_from_the_first_use_to_now(parts: Parts, operator: Person) -> None:
    acme, ann = tenant_of(parts, "ann", "acme")
    add(parts, usage(acme, ann, "2026-10-05", "desk", 1))
    assert "Next month" not in operator.get("/admin/usage").text
    october = operator.get("/admin/usage?month=2026-10").text
    assert 'href="/admin/usage?month=2026-11&amp;tenant="' in october
    assert "Month before" not in october
    for wrong in ("2026", "2026-13", "1999-01", "x", "2026-1"):
        assert operator.get(f"/admin/usage?month={wrong}").status_code == 400


def test_a_turn_is_in_the_sums_after_a_quarter_of_a_minute_and_a_day_that_is_over_is_not_added_up_again(
    parts: Parts, operator: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, ann = tenant_of(parts, "ann", "acme")
    add(
        parts,
        usage(acme, ann, "2026-11-01", "desk", 1_000_000),
        usage(acme, ann, "2026-11-19", "desk", 1_000_000),
    )
    assert sums(operator, "/admin/usage")["acme"][0] == "$2.00"
    add(
        parts,
        usage(acme, ann, "2026-11-01", "late", 1_000_000),
        usage(acme, ann, "2026-11-19", "now", 1_000_000),
    )
    assert sums(operator, "/admin/usage")["acme"][0] == "$2.00"
    set_clock(monkeypatch, NOW + SUMMED_AGAIN_AFTER)
    added_up: list[str] = []
    add_up = usage_reports.UsageReports._add_up
    monkeypatch.setattr(
        usage_reports.UsageReports, "_add_up", lambda *args: (added_up.append(args[1]), add_up(*args))
    )
    assert sums(operator, "/admin/usage")["acme"][0] == "$3.00"
    assert added_up == ["2026-11-18", "2026-11-19"]


@given(st.datetimes(datetime(2026, 11, 1), datetime(2026, 11, 30), timezones=st.just(UTC)))
def test_a_day_is_added_up_until_nothing_can_be_added_to_it_any_more(now: datetime) -> None:
    day = "2026-11-10"
    midnight = datetime(2026, 11, 11, tzinfo=UTC)
    lately, long_ago = now - SUMMED_AGAIN_AFTER / 2, now - timedelta(hours=1)
    assert _is_due(day, None, now) == (now >= midnight - timedelta(days=1))
    assert not _is_due(day, lately, now)
    if now >= midnight - timedelta(days=1):
        assert _is_due(day, long_ago, now) == (long_ago < midnight + FINAL_AFTER)


def test_a_month_has_its_days() -> None:
    days = Month(datetime(2028, 2, 1).date()).days
    assert (days[0], days[-1], len(days)) == ("2028-02-01", "2028-02-29", 29)
