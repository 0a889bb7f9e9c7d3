"""Accounts on the admin pages: who may do what to whom, what becomes of it, and what the audit log has."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from sqlalchemy import select

from agentapp.errors import Forbidden, LoginRequired
from agentapp.isolation import RequestScope, UserScope, new_id
from agentapp.storage import user_changes
from agentapp.storage.models import User
from agentapp.storage.operator_models import AuditRow
from agentapp.storage.passwords import check_password, new_password
from agentapp.storage.user_changes import NO_OTHER_OPERATOR
from agentapp.storage.user_rules import ONESELF, OPERATORS_ONLY
from agentapp.storage.values import Role
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted
from tests.support.times import utc_now
from tests.support.turns import hurry
from tests.support.users import JSON, PAGE, PASSWORD, Person, csrf_of, person, sign_in
from tests.turns.charging import says
from tests.turns.test_surviving import staged

SHOWN = re.compile(r'<code class="break">([^<]+)</code>')
CHANGES = frozenset({"role-changed", "user-disabled", "user-enabled", "logins-ended", "password-reset"})
NEW = "another long enough password"


@pytest.fixture
def operator(app: Flask) -> Person:
    """Of the admin's own tenant."""
    return person(app, "otto", role="operator")


def id_of(parts: Parts, name: str) -> str:
    with parts.db.writing() as db:
        return db.execute(select(User.id).where(User.name == name)).scalar_one()


def users(parts: Parts) -> dict[str, tuple[str, str]]:
    """Tenant and role of each, by name."""
    with parts.binder.bound(RequestScope(request_id=new_id())):
        return {user.name: (user.tenant, user.role) for user in parts.accounts.all()}


def scope_of(parts: Parts, name: str) -> UserScope:
    with parts.db.writing() as db:
        user, tenant = db.execute(select(User.id, User.tenant_id).where(User.name == name)).one()
    return UserScope(request_id=new_id(), tenant_id=tenant, user_id=user)


def audited(parts: Parts, name: str) -> list[tuple[str, str | None, dict[str, object]]]:
    """What admins did to this user since it was added: by whom, with which details."""
    user = id_of(parts, name)
    with parts.db.writing() as db:
        rows = db.scalars(select(AuditRow).where(AuditRow.subject == f"user:{user}").order_by(AuditRow.id))
        return [(row.action, row.user_id, dict(row.detail)) for row in rows if row.action in CHANGES]


def path_of(parts: Parts, name: str, action: str = "") -> str:
    return f"/admin/users/{id_of(parts, name)}{action}"


def sign_in_with(app: Flask, name: str, password: str) -> Person:
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    data = {"csrf_token": csrf, "username": name, "password": password}
    assert browser.post("/login", data=data, headers=PAGE).status_code == 303
    return Person(name, browser, csrf_of(browser.get("/account", headers=PAGE).text))


def test_who_is_added_gets_a_password_that_must_be_changed_before_anything_else(
    app: Flask, parts: Parts, admin: Person
) -> None:
    answer = admin.post("/admin/users", name="Zoe", role="member")
    assert answer.status_code == 201
    (password,) = SHOWN.findall(answer.text)
    assert password not in admin.get(path_of(parts, "zoe")).text, "shown once"
    zoe = sign_in_with(app, "zoe", password)
    assert zoe.get("/chat").location == "/account#password"
    assert "Somebody else chose your password" in zoe.get("/account").text
    refused = zoe.browser.post("/chat", data={"csrf_token": zoe.csrf}, headers=JSON)
    assert (refused.status_code, refused.json["code"]) == (403, "forbidden")
    same = zoe.post("/account/password", old_password=password, new_password=password)
    assert same.status_code == 400
    assert zoe.post("/account/password", old_password=password, new_password=NEW).status_code == 303
    again = sign_in_with(app, "zoe", NEW)
    assert again.get("/chat").status_code == 200
    assert "password to be changed" not in admin.get(path_of(parts, "zoe")).text


def test_an_admin_adds_members_and_admins_of_the_own_tenant_only(
    parts: Parts, admin: Person, bob: Person
) -> None:
    assert admin.post("/admin/users", name="eve", role="admin", tenant="elsewhere").status_code == 201
    assert users(parts)["eve"] == ("default", "admin")
    assert admin.post("/admin/users", name="max", role="operator").status_code == 403
    assert "max" not in users(parts)


def test_an_operator_adds_anybody_anywhere(parts: Parts, operator: Person) -> None:
    assert operator.post("/admin/users", name="max", role="operator", tenant="brandnew").status_code == 201
    assert users(parts)["max"] == ("brandnew", "operator")


@pytest.mark.parametrize(
    ("name", "role", "words"),
    [("", "member", "has 1 to"), ("ann", "member", "already a user"), ("zoe", "king", "A role is one of")],
)
def test_what_cannot_be_added_is_said_beside_what_was_typed(
    parts: Parts, admin: Person, ann: Person, name: str, role: str, words: str
) -> None:
    answer = admin.post("/admin/users", name=name, role=role)
    assert answer.status_code == 400
    assert words in answer.text
    assert f'name="name" value="{name}"' in answer.text


def test_a_refused_name_tells_no_name_of_another_tenant(admin: Person, app: Flask) -> None:
    person(app, "rnax", tenant="elsewhere")
    answer = admin.post("/admin/users", name="max")
    assert answer.status_code == 400
    assert "rnax" not in answer.text


def test_a_promoted_member_is_an_admin_with_the_next_request_and_a_demoted_one_is_not(
    parts: Parts, admin: Person, operator: Person, ann: Person
) -> None:
    assert ann.get("/admin").status_code == 403
    admin.post(path_of(parts, "ann", "/role"), role="admin")
    assert ann.get("/admin").status_code == 200
    operator.post(path_of(parts, "ann", "/role"), role="member")
    assert ann.get("/admin").status_code == 403
    assert audited(parts, "ann") == [
        ("role-changed", id_of(parts, "ada"), {"from": "member", "to": "admin"}),
        ("role-changed", id_of(parts, "otto"), {"from": "admin", "to": "member"}),
    ]


def test_an_admin_neither_makes_nor_changes_operators(
    parts: Parts, admin: Person, operator: Person, ann: Person
) -> None:
    assert admin.post(path_of(parts, "ann", "/role"), role="operator").status_code == 403
    page = admin.get(path_of(parts, "otto")).text
    assert OPERATORS_ONLY in page
    assert f"{path_of(parts, 'otto')}/" not in page
    for action in ("role", "disable", "enable", "end-logins", "password"):
        answer = admin.post(path_of(parts, "otto", f"/{action}"), role="member")
        assert (answer.status_code, OPERATORS_ONLY in answer.text) == (403, True), action
    assert operator.get("/admin").status_code == 200
    assert audited(parts, "otto") == audited(parts, "ann") == []


def test_nobody_changes_the_own_account_here(parts: Parts, admin: Person) -> None:
    for action in ("role", "disable", "enable", "end-logins", "password"):
        answer = admin.post(path_of(parts, "ada", f"/{action}"), role="member")
        assert (answer.status_code, ONESELF in answer.text) == (403, True), action
    assert admin.get("/admin").status_code == 200


def test_a_disabled_users_next_request_is_refused_and_running_streams_end(
    app: Flask, parts: Parts, admin: Person, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, parts)
    silence, chat = threading.Event(), scope_of(parts, "ann").within(ann.new_chat())
    with parts.binder.bound(chat):
        _, token = parts.accounts.sign_in("ann", PASSWORD)
    stream = staged(parts, Scripted(says("One half", silence))).send(chat, NewMessage("Hello"), token)
    assert admin.post(path_of(parts, "ann", "/disable")).status_code == 303
    assert ann.get("/chat").location.startswith("/login")
    with pytest.raises(LoginRequired):
        list(stream)
    stream.close()
    silence.set()
    with pytest.raises(AssertionError, match="not right"):
        sign_in(app, "ann")
    admin.post(path_of(parts, "ann", "/enable"))
    assert sign_in(app, "ann").get("/chat").status_code == 200
    assert ann.get("/chat").location.startswith("/login"), "what has ended does not come back"
    for again in ("/enable", "/disable", "/disable"):
        admin.post(path_of(parts, "ann", again))
    done = [action for action, *_ in audited(parts, "ann")]
    assert done == ["user-disabled", "user-enabled", "user-disabled"], "what is so already is not done again"


def test_ended_logins_are_ended_and_the_password_stays(
    app: Flask, parts: Parts, admin: Person, ann: Person
) -> None:
    admin.post(path_of(parts, "ann", "/end-logins"))
    assert ann.get("/chat").location.startswith("/login")
    admin.post(path_of(parts, "ann", "/end-logins"))
    assert sign_in(app, "ann").get("/chat").status_code == 200
    assert audited(parts, "ann") == [("logins-ended", id_of(parts, "ada"), {"count": 1})]


def test_a_reset_password_is_shown_once_ends_all_logins_and_replaces_the_old_one(
    app: Flask, parts: Parts, admin: Person, ann: Person
) -> None:
    answer = admin.post(path_of(parts, "ann", "/password"))
    (password,) = SHOWN.findall(answer.text)
    assert ann.get("/chat").location.startswith("/login")
    with pytest.raises(AssertionError, match="not right"):
        sign_in(app, "ann")
    assert sign_in_with(app, "ann", password).get("/chat").location == "/account#password"
    ((action, _, detail),) = audited(parts, "ann")
    assert (action, detail) == ("password-reset", {"logins": 1})


def test_what_is_refused_changes_nothing_and_is_not_in_the_audit_log(
    parts: Parts, admin: Person, operator: Person
) -> None:
    admin.post(path_of(parts, "otto", "/disable"))
    admin.post("/admin/users", name="max", role="operator")
    by_admin = AuditRow.user_id == id_of(parts, "ada"), AuditRow.action.in_([*CHANGES, "user-added"])
    with parts.db.writing() as db:
        assert db.scalars(select(AuditRow.id).where(*by_admin)).all() == []


def test_the_audit_log_has_no_names_and_no_passwords(parts: Parts, admin: Person, ann: Person) -> None:
    shown = SHOWN.findall(admin.post("/admin/users", name="zoe").text)
    shown += SHOWN.findall(admin.post(path_of(parts, "ann", "/password")).text)
    admin.post(path_of(parts, "zoe", "/role"), role="admin")
    with parts.db.writing() as db:
        rows = repr([(row.subject, row.detail) for row in db.scalars(select(AuditRow))])
    assert len(shown) == 2
    assert not [each for each in (*shown, "zoe", "ann", "ada") if f"'{each}'" in rows]


def test_users_are_found_by_the_beginning_of_their_name(app: Flask, parts: Parts, admin: Person) -> None:
    for name in ("anna", "ann\u00e9", "an.b", "bea"):
        parts.accounts.add(name, PASSWORD)

    def found(beginning: str) -> list[str]:
        page = admin.browser.get("/admin/users", query_string={"q": beginning}, headers=PAGE).text
        return re.findall(r'<a href="/admin/users/[\w-]+">([^<]+)</a>', page)

    assert found("an") == ["an.b", "anna", "ann\u00e9"]
    assert found("ANN") == ["anna", "ann\u00e9"]
    assert found("%") == found("_") == []


def test_a_new_password_fits_the_rules() -> None:
    made = {new_password() for _ in range(20)}
    assert len(made) == 20
    for password in made:
        check_password(password, "ann")


# The rules of the last operator, on both databases.


@pytest.fixture
def both(any_app: Flask) -> Parts:
    found: Parts = any_app.extensions["agentapp"]
    return found


def make(parts: Parts, name: str, role: Role = "operator") -> UserScope:
    user = parts.accounts.add(name, PASSWORD, role=role)
    return UserScope(request_id=new_id(), tenant_id=user.tenant_id, user_id=user.id)


def test_of_two_operators_who_disable_each_other_at_once_one_is_left(both: Parts) -> None:
    one, two = make(both, "one"), make(both, "two")
    begin = threading.Barrier(2)

    def disable(by: UserScope, other: UserScope) -> str:
        begin.wait(20)
        try:
            with both.binder.bound(by):
                both.admin.users.disable(by, other.user_id)
        except Forbidden as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(disable, (one, two), (two, one)))
    assert sorted(results) == ["This is for admins.", "done"]


def test_the_last_operator_is_neither_disabled_nor_demoted(both: Parts) -> None:
    """Not by the command either. One who is disabled does not count."""
    last, other = make(both, "last"), make(both, "other")
    with both.binder.bound(last):
        both.admin.users.disable(last, other.user_id)
        with pytest.raises(Forbidden, match=NO_OTHER_OPERATOR):
            both.accounts.disable("last")
        with both.db.writing() as db, pytest.raises(Forbidden, match=NO_OTHER_OPERATOR):
            user_changes.change_role(db, last, db.get_one(User, last.user_id), "member")
        both.admin.users.change_role(last, other.user_id, "member")
        both.admin.users.enable(last, other.user_id)


def test_who_was_demoted_meanwhile_changes_nothing_any_more(both: Parts) -> None:
    boss, was_admin, member = make(both, "boss"), make(both, "was", "admin"), make(both, "ann", "member")
    both.admin.users.change_role(boss, was_admin.user_id, "member")
    changes: list[Callable[[], object]] = [
        lambda: both.admin.users.disable(was_admin, member.user_id),
        lambda: both.admin.users.add(was_admin, "max", "member", "default"),
        lambda: both.admin.users.reset_password(was_admin, member.user_id),
    ]
    for change in changes:
        with pytest.raises(Forbidden, match="for admins"):
            change()


def test_users_come_in_the_same_order_from_both_databases_a_page_at_a_time(both: Parts) -> None:
    names = ["Zoe", "anna", "ann\u00e9", "an-b", "an_c", "\u00e9va", "bea", "\u043e\u043b\u0433\u0430"]
    for name in names:
        make(both, name, "member")
    asking, after, found = make(both, "an", "admin"), "", []
    with both.binder.bound(asking):
        while page := both.admin.users.listed(asking.tenant_id, utc_now().date(), "", after, 2):
            found += [facts.user.name for facts in page]
            after = found[-1]
        begun = both.admin.users.listed(None, utc_now().date(), "an", "", 99)
    assert found == sorted([name.casefold() for name in names] + ["an"])
    assert [facts.user.name for facts in begun] == ["an", "an-b", "an_c", "anna", "ann\u00e9"]
