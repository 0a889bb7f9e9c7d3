"""Who may see the admin pages, how long lists are paged, and what is drawn."""

from __future__ import annotations

import re

import pytest
from flask import Flask

from agentapp.errors import BadRequest
from agentapp.isolation import RequestScope
from agentapp.storage.db import Database
from agentapp.web.admin import pages_for
from agentapp.web.admin.paging import after, page_of
from agentapp.web.parts import Parts
from agentapp.web.plots import Series, bar_plot, rounded_up
from tests.support.app_inspection import path_of, routes
from tests.support.metrics import run_job
from tests.support.users import JSON, PAGE, Person, person


@pytest.fixture
def admin(app: Flask) -> Person:
    return person(app, "ada", role="admin")


@pytest.fixture
def operator(app: Flask) -> Person:
    return person(app, "otto", role="operator")


def admin_routes(app: Flask) -> list[tuple[str, str]]:
    found = [
        (path_of(app, rule), method)
        for rule, method in routes(app)
        if rule.rule.startswith("/admin") and method in ("GET", "POST")
    ]
    assert ("/admin", "GET") in found
    return found


def test_members_are_refused_on_every_admin_page_and_action(app: Flask, ann: Person) -> None:
    for path, method in admin_routes(app):
        answer = ann.browser.open(path, method=method, data={"csrf_token": ann.csrf}, headers=JSON)
        assert (answer.status_code, answer.json["code"]) == (403, "forbidden"), path


def test_who_has_not_signed_in_is_asked_to(app: Flask) -> None:
    for path, method in admin_routes(app):
        if method == "GET":
            assert app.test_client().get(path, headers=PAGE).location.startswith("/login?next=%2Fadmin")
            assert app.test_client().get(path, headers=JSON).status_code == 401


def test_every_page_in_the_navigation_is_there(admin: Person, operator: Person) -> None:
    for who, is_operator in ((admin, False), (operator, True)):
        home = who.get("/admin").text
        for page in pages_for(is_operator):
            assert f'href="{page.path}"' in home
            shown = who.get(page.path)
            assert shown.status_code == 200, page.path
            assert f'<a href="{page.path}" aria-current="page">' in shown.text


def test_the_first_page_tells_at_a_glance_how_the_own_tenant_stands(app: Flask, admin: Person) -> None:
    parts: Parts = app.extensions["agentapp"]
    stranger = person(app, "zoe", tenant="elsewhere")
    for who in (admin, stranger):
        chat = who.new_chat()
        for _ in range(3):
            who.send(chat, "/fail")
    parts.telemetry.alert("budget-90", "nearly", subject="tenant:x", tenant_id=tenant_of(parts, "zoe"))
    run_job(parts, "store alerts")
    run_job(parts, "store counts")

    def told(who: Person) -> dict[str, str]:
        return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", who.get("/admin").text))

    mine, everybodys = told(admin), told(person(app, "otto", role="operator"))
    assert (mine["Breakers tripped"], everybodys["Breakers tripped"]) == ("1", "2")
    assert (mine["Open alerts"], everybodys["Open alerts"]) == ("0", "1")
    assert (mine["Turns running"], mine["Isolation, the last hour"]) == ("0", "100%")


def tenant_of(parts: Parts, name: str) -> str:
    with parts.binder.bound(RequestScope(request_id="reader")):
        return next(user.tenant_id for user in parts.accounts.all() if user.name == name)


def test_pages_for_operators_are_neither_shown_to_admins_nor_listed(admin: Person) -> None:
    home = admin.get("/admin").text
    for page in pages_for(is_operator=True):
        if page.operators_only:
            assert f'href="{page.path}"' not in home
            assert admin.get(page.path).status_code == 403


def test_a_demoted_admins_next_request_is_refused(app: Flask, admin: Person) -> None:
    assert admin.get("/admin").status_code == 200
    db: Database = app.extensions["agentapp"].db
    with db.writing() as session:
        session.connection().exec_driver_sql("UPDATE users SET role = 'member' WHERE name = 'ada'")
    for path, method in admin_routes(app):
        answer = admin.browser.open(path, method=method, data={"csrf_token": admin.csrf}, headers=PAGE)
        assert answer.status_code == 403, path


def test_only_admins_have_a_link_to_the_admin_pages(ann: Person, admin: Person) -> None:
    assert 'href="/admin"' in admin.get("/chat").text
    assert 'href="/admin"' not in ann.get("/chat").text


def test_a_page_begins_after_the_last_row_of_the_one_before(app: Flask) -> None:
    rows = [("a", 3), ("a", 2), ("b", 1)]
    with app.test_request_context("/?"):
        page = page_of(rows, lambda row: row, rows=2)
        assert (page.rows, page.is_first) == ([("a", 3), ("a", 2)], True)
        assert page_of(rows, lambda row: row, rows=3).next is None
    with app.test_request_context("/", query_string={"after": page.next or ""}):
        assert after(str, int) == ("a", 2)
        assert not page_of(rows, lambda row: row).is_first


@pytest.mark.parametrize(
    "text",
    ["!", "AAAA", "WzFd", "WyJhIl0=", "WyJhIiwgInUiXQ==", "WyJhIiwgdHJ1ZV0=", "WyJhXHUwMDAwIiwgMV0=", "€"],
)
def test_a_page_that_nobody_made_is_refused(app: Flask, text: str) -> None:
    with app.test_request_context("/", query_string={"after": text}), pytest.raises(BadRequest):
        after(str, int)


def test_a_number_that_no_database_can_compare_is_refused(app: Flask) -> None:
    with app.test_request_context("/"):
        key = page_of([1, 2], lambda row: (10**30,), rows=1).next
    with app.test_request_context("/", query_string={"after": key}), pytest.raises(BadRequest):
        after(int)


def test_bars_of_one_time_stand_on_each_other_and_never_leave_the_drawing() -> None:
    plot = bar_plot("Turns", ["1", "2"], [Series("good", [3, None]), Series("bad", [4, 5])])
    assert plot.ticks == ("8", "4", "0")
    first, second, third = plot.bars
    assert first.y == pytest.approx(second.y + second.height)
    assert [bar.y + bar.height for bar in plot.bars] == pytest.approx([100, 62.5, 100])
    assert min(bar.y for bar in plot.bars) >= 0
    assert (third.series, third.x > 1) == (1, True)
    assert plot.rows == (("1", "3", "4"), ("2", "–", "5"))


def test_no_two_ticks_have_the_same_text() -> None:
    assert bar_plot("Violations", ["1"], [Series("violations", [1])]).ticks == ("1", "", "0")


def test_no_data_is_not_drawn_as_zero() -> None:
    assert not bar_plot("Score", ["1"], [Series("score", [None])]).has_data
    assert bar_plot("Score", ["1"], [Series("score", [0])]).has_data


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.03, 0.04), (1, 1), (7, 8), (9.5, 10), (101, 200)])
def test_the_highest_tick_is_a_round_number_above_all_values(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)
