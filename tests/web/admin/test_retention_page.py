"""The admin page of retention, and the page on which a user is erased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import select

from agentapp.config import Settings
from agentapp.isolation import new_id
from agentapp.storage.models import User
from agentapp.storage.operator_models import AuditRow
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page, sql
from tests.support.erased_users import scope_of
from tests.support.plans import scans_noted
from tests.support.times import utc_now
from tests.support.users import JSON, Person, person


@pytest.fixture
def app(make_app: Callable[..., Flask], settings: Settings) -> Flask:
    return make_app(wanted=replace(settings, retain_sessions_days=90))


@pytest.fixture
def admin(app: Flask) -> Person:
    return person(app, "ada", role="admin")


@pytest.fixture
def operator(app: Flask) -> Person:
    return person(app, "otto", role="operator")


def tenant_of(parts: Parts, who: Person) -> str:
    return scope_of(parts, who).tenant_id


def make_old(settings: Settings, chat: str, days: int) -> None:
    at = (utc_now() - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
    sql(settings, "UPDATE sessions SET updated_at = ? WHERE id = ?", at, chat)


def test_an_operator_sees_all_tenants_and_an_admin_the_own_one(
    parts: Parts, admin: Person, operator: Person, bob: Person
) -> None:
    page = operator.get("/admin/retention").text
    assert "elsewhere" in page
    assert "90 days" in page
    page = admin.get("/admin/retention").text
    assert "elsewhere" not in page
    own, other = tenant_of(parts, admin), tenant_of(parts, bob)
    assert "Operators set the days." in admin.get(f"/admin/retention/{own}").text
    assert admin.get(f"/admin/retention/{other}").status_code == 404
    assert admin.get(f"/admin/retention/{new_id()}").status_code == 404


def test_an_operator_sets_the_days_and_sees_what_will_go(
    parts: Parts, settings: Settings, operator: Person, ann: Person
) -> None:
    path = f"/admin/retention/{tenant_of(parts, ann)}"
    for days in (40, 100):
        make_old(settings, ann.new_chat(), days)
    assert '<td class="right">1</td>' in operator.get(path).text
    answer = operator.post(path, chats_days="30", audit_days="0")
    assert answer.status_code == 303
    page = operator.get(answer.location).text
    assert "Saved." in page
    assert "<td>30 days</td>" in page
    assert "<td>for ever</td>" in page
    assert '<td class="right">2</td>' in page
    assert Page(page).form(path).fields | {"csrf_token": ""} == {
        "chats_days": "30", "audit_days": "0", "csrf_token": "",
    }  # fmt: skip
    operator.post(path, chats_days="30", audit_days="0")
    operator.post(path, chats_days="", audit_days="")
    with parts.db.writing() as db:
        rows = db.scalars(select(AuditRow).where(AuditRow.action == "retention-changed")).all()
        details = [row.detail for row in rows]
        assert {row.tenant_id for row in rows} == {tenant_of(parts, ann)}
    assert details == [
        {"chats_from": None, "chats_to": 30, "audit_from": None, "audit_to": 0},
        {"chats_from": 30, "chats_to": None, "audit_from": 0, "audit_to": None},
    ], "and nothing of the change that was none"


def test_an_admin_cannot_set_them(parts: Parts, admin: Person) -> None:
    path = f"/admin/retention/{tenant_of(parts, admin)}"
    assert admin.post(path, chats_days="1", audit_days="1").status_code == 403


def test_what_is_no_number_of_days_is_refused(parts: Parts, operator: Person) -> None:
    path = f"/admin/retention/{tenant_of(parts, operator)}"
    for days in ("-1", "1.5", "x", "36501", "²", "1 0"):
        assert operator.post(path, chats_days=days, audit_days="").status_code == 400
        assert operator.post(path, chats_days="", audit_days=days).status_code == 400


def test_the_pages_read_no_whole_table(parts: Parts, operator: Person) -> None:
    path = f"/admin/retention/{tenant_of(parts, operator)}"
    with scans_noted(parts.db, "sessions|audit_log|users|messages") as scans:
        assert operator.get("/admin/retention").status_code == operator.get(path).status_code == 200
    assert scans == []


def test_the_account_says_how_long_chats_are_kept(parts: Parts, operator: Person, ann: Person) -> None:
    assert "90 days" in ann.get("/account").text
    operator.post(f"/admin/retention/{tenant_of(parts, ann)}", chats_days="1", audit_days="")
    assert "1 day:" in ann.get("/account").text


def erase_path(parts: Parts, who: Person) -> str:
    return f"/admin/users/{scope_of(parts, who).user_id}/erase"


def names_left(parts: Parts) -> set[str]:
    with parts.db.writing() as db:
        return set(db.scalars(select(User.name)))


def test_a_user_is_erased_after_the_name_was_typed(parts: Parts, operator: Person, ann: Person) -> None:
    path = erase_path(parts, ann)
    ann.new_chat()
    assert "cannot be undone" in operator.get(path).text
    wrong = operator.post(path, name="anne")
    assert wrong.status_code == 400
    assert 'role="alert"' in wrong.text
    assert names_left(parts) == {"ann", "otto"}
    done = operator.post(path, name=" ANN ")
    assert done.status_code == 200
    assert "<code>sessions</code>" in done.text
    assert "in no page of the database" in done.text
    assert names_left(parts) == {"otto"}
    assert ann.browser.get("/chat", headers=JSON).status_code == 401
    assert operator.get(path).status_code == operator.post(path, name="ann").status_code == 404
    with parts.db.writing() as db:
        entry = db.scalars(select(AuditRow).where(AuditRow.action == "user-erased")).one()
        assert entry.user_id == scope_of(parts, operator).user_id


def test_an_admin_erases_members_of_the_own_tenant_only(
    app: Flask, parts: Parts, admin: Person, operator: Person, ann: Person, bob: Person
) -> None:
    person(app, "olga", role="operator")
    for who, status in ((bob, 404), (operator, 403), (ann, 200)):
        path = erase_path(parts, who)
        assert admin.get(path).status_code == admin.post(path, name=who.name).status_code == status
    assert names_left(parts) == {"ada", "bob", "olga", "otto"}


def test_the_last_operator_is_told_so(parts: Parts, operator: Person) -> None:
    answer = operator.post(erase_path(parts, operator), name="otto")
    assert answer.status_code == 403
    assert "last operator" in answer.text
    assert operator.get("/admin").status_code == 200
