"""The page of alerts: who sees which, what is told of each, and acknowledging."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from flask import Flask
from sqlalchemy import select, update

from agentapp.storage.alerts import MOST_COUNTED
from agentapp.storage.models import User
from agentapp.storage.operator_models import AlertRow, AuditRow
from agentapp.telemetry.alerts import SEVERITIES, Alert
from agentapp.web.admin.alerts import TITLES
from agentapp.web.admin.paging import PAGE_ROWS
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page, faults
from tests.support.statements import statements_noted
from tests.support.times import utc_now
from tests.support.users import JSON, Person, person


@pytest.fixture
def admin(app: Flask) -> Person:
    return person(app, "ada", role="admin")


@pytest.fixture
def operator(app: Flask) -> Person:
    return person(app, "otto", tenant="staff", role="operator")


def tenant_of(parts: Parts, name: str) -> str:
    with parts.db.writing() as db:
        return str(db.scalars(select(User.tenant_id).where(User.name == name)).one())


def add(parts: Parts, *alerts: Alert) -> None:
    parts.admin.alerts.add(alerts)


def only(parts: Parts) -> AlertRow:
    with parts.db.writing() as db:
        row = db.scalars(select(AlertRow)).one()
        db.expunge(row)
        return row


def change(parts: Parts, **values: object) -> None:
    with parts.db.writing() as db:
        db.execute(update(AlertRow).values(**values))


def test_every_kind_of_alert_has_a_title() -> None:
    assert TITLES.keys() == SEVERITIES.keys()


def test_an_alert_is_told_in_words_with_its_severity_and_request(parts: Parts, operator: Person) -> None:
    add(parts, Alert("cross-request-leak", "left-bound: it was", "left-bound", None, "request-1", 1_234))
    page = operator.get("/admin/alerts").text
    assert list(faults(page)) == []
    for told in ("critical", TITLES["cross-request-leak"], "left-bound: it was", "request-1", "1,234"):
        assert told in page
    assert "none is set" in page, "no webhook"


def test_an_admin_sees_counts_and_acknowledges_only_alerts_of_the_own_tenant(
    parts: Parts, admin: Person, operator: Person, bob: Person
) -> None:
    add(
        parts,
        Alert("budget-90", "of mine", "user:mine", tenant_of(parts, "ada")),
        Alert("budget-90", "of another", "user:other", tenant_of(parts, "bob")),
        Alert("heartbeat-late", "of the server", "worker:1"),
    )
    mine, all_of_them = admin.get("/admin/alerts").text, operator.get("/admin/alerts").text
    assert ["of mine" in mine, "of another" in mine, "of the server" in mine] == [True, False, False]
    assert all(text in all_of_them for text in ("of mine", "of another", "of the server"))
    for who, count in ((admin, 1), (operator, 3)):
        assert f'<span class="count">{count}<span class="visually-hidden"> open' in who.get("/admin").text
    actions = [form.action for form in Page(all_of_them).forms if form.action.endswith("/acknowledge")]
    answers = [admin.post(action).status_code for action in actions]
    assert sorted(answers) == [303, 404, 404]
    assert "of mine" not in "".join(a.text for a in Page(admin.get("/admin/alerts").text).all("form"))
    assert 'class="count"' not in admin.get("/admin").text


def test_what_is_acknowledged_is_shown_below_with_who_and_when_and_is_in_the_audit_log(
    parts: Parts, admin: Person
) -> None:
    tenant_id = tenant_of(parts, "ada")
    add(parts, Alert("budget-90", "nearly used up", "user:u", tenant_id))
    (form,) = [f for f in Page(admin.get("/admin/alerts").text).forms if f.action.endswith("/acknowledge")]
    answer = admin.browser.post(form.action, data=form.fields)
    assert (answer.status_code, answer.location) == (303, "/admin/alerts?done")
    page = admin.get(answer.location).text
    assert "The alert is acknowledged." in page
    assert "There is nothing to look at." in page
    below = page.partition("Acknowledged</h2>")[2]
    assert "nearly used up" in below
    assert "Acknowledged by ada, <time" in below
    with parts.db.writing() as db:
        (row,) = db.scalars(select(AuditRow).where(AuditRow.action == "alert-acknowledged"))
        assert (row.tenant_id, row.detail["about"]) == (tenant_id, "user:u")


def test_an_admin_does_not_learn_which_operator_has_looked(
    parts: Parts, admin: Person, operator: Person
) -> None:
    add(parts, Alert("budget-90", "nearly used up", "user:u", tenant_of(parts, "ada")))
    assert operator.post(f"/admin/alerts/{only(parts).id}/acknowledge").status_code == 303
    assert "otto" in operator.get("/admin/alerts").text.partition("Acknowledged</h2>")[2]
    below = admin.get("/admin/alerts").text.partition("Acknowledged</h2>")[2]
    assert "by an operator" in below
    assert "otto" not in below


def test_an_alert_that_is_not_there_is_not_found(operator: Person) -> None:
    answer = operator.post("/admin/alerts/nobodys-nobodys-nobody/acknowledge", JSON)
    assert (answer.status_code, answer.json["code"]) == (404, "not-found")


def test_long_lists_come_in_pages_the_open_ones_first(parts: Parts, operator: Person) -> None:
    """Each row comes once, whatever page it is on."""
    add(parts, *[Alert("budget-90", f"done-{n:03}", f"user:{n}", "t") for n in range(PAGE_ROWS + 5)])
    change(parts, acknowledged_at=utc_now(), acknowledged_by="nobody")
    add(parts, *[Alert("budget-90", f"open-{n:03}", f"user:{n}", "t") for n in range(PAGE_ROWS + 5)])
    seen, address = list[list[str]](), "/admin/alerts"
    while address:
        page = Page(operator.get(address).text)
        seen.append(re.findall(r"(?:open|done)-[0-9]{3}", page.all("main")[0].text))
        following = [link for link in page.all("a") if link.attributes.get("rel") == "next"]
        address = following[0].attributes["href"] if following else ""
    assert [len(rows) for rows in seen] == [PAGE_ROWS, PAGE_ROWS, 10]
    rows = list(chain(*seen))
    assert len(set(rows)) == 2 * (PAGE_ROWS + 5)
    assert [row[:4] for row in rows] == ["open"] * (PAGE_ROWS + 5) + ["done"] * (PAGE_ROWS + 5)


@pytest.mark.parametrize(
    "after", ["WyJvcGVuIiwgLTksICJ4Il0=", "WyJvcGVuIiwgOTk5OTk5OTk5OTk5OTk5OTk5LCAieCJd"]
)
def test_a_place_in_the_list_that_no_clock_can_show_is_refused_or_empty(operator: Person, after: str) -> None:
    assert operator.get(f"/admin/alerts?after={after}").status_code in (200, 400)


def test_the_badge_shows_no_more_than_it_counts_and_costs_one_statement(
    parts: Parts, operator: Person
) -> None:
    add(parts, *[Alert("budget-90", "x", f"user:{n}", "t") for n in range(MOST_COUNTED + 5)])
    seen: list[str] = []
    with statements_noted(lambda statement, values: seen.append(statement), parts.db):
        page = operator.get("/admin").text
    assert f'<span class="count">{MOST_COUNTED}+<' in page
    assert len([statement for statement in seen if "alerts" in statement]) == 1


def test_it_is_told_how_it_stands_with_the_webhook(parts: Parts, operator: Person) -> None:
    now, failed = utc_now(), {"delivery_problem": "it answered 500"}
    add(parts, Alert("reset-slow", "x"))
    for values, told in (
        ({"next_delivery_at": now}, "being sent</p>"),
        ({"next_delivery_at": None, "delivered_at": now}, "sent <time"),
        (
            {"next_delivery_at": now, "delivery_attempts": 1, **failed},
            "not taken after one try, again <time",
        ),
        (
            {"next_delivery_at": None, "delivery_attempts": 20, **failed},
            "given up after 20 tries: it answered 500",
        ),
        ({"acknowledged_at": now}, "not sent, and no longer tried, after 20 tries: it answered 500"),
    ):
        change(parts, **values)
        assert f"Webhook: {told}" in operator.get("/admin/alerts").text


def test_words_of_an_alert_are_text_and_not_html(parts: Parts, operator: Person) -> None:
    add(parts, Alert("reset-slow", "<script>alert(1)</script>", "<b>"))
    page = operator.get("/admin/alerts").text
    assert "<script>alert" not in page
    assert list(faults(page)) == []
