"""The account page: own logins, password, usage and limits."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from flask import Flask
from sqlalchemy import select

from agentapp.config import Settings
from agentapp.isolation import UserScope, new_id
from agentapp.storage.logins import SEEN_EVERY, digest_of
from agentapp.storage.models import Login, User
from agentapp.storage.operator_models import AuditRow, UsageDay
from agentapp.web.browsers import browser_in_words, kept
from agentapp.web.parts import Parts
from tests.support.users import JSON, PAGE, PASSWORD, Person, csrf_of, sign_in

NEW = "another long enough password"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def change(who: Person, old: str = PASSWORD, new: str = NEW, **headers: str) -> int:
    answer = who.post("/account/password", headers or None, old_password=old, new_password=new)
    return answer.status_code


def login_ids(who: Person) -> list[str]:
    return re.findall(r"/account/logins/(\w{24})/end", who.get("/account").text)


def is_signed_in(who: Person) -> bool:
    return who.browser.get("/account", headers=JSON).status_code == 200


def audited(parts: Parts) -> list[str]:
    with parts.db.writing() as db:
        return list(db.scalars(select(AuditRow.action).order_by(AuditRow.id)))


def test_a_password_is_changed_only_by_who_knows_the_old_one(app: Flask, ann: Person) -> None:
    assert change(ann, old="not the right password") == 401
    assert is_signed_in(sign_in(app, "ann"))
    assert change(ann) == 303
    assert is_signed_in(ann)
    with pytest.raises(AssertionError, match="not right"):
        sign_in(app, "ann")


def test_a_bad_new_password_changes_nothing_and_says_why(app: Flask, ann: Person) -> None:
    answer = ann.post("/account/password", old_password=PASSWORD, new_password="password")
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert is_signed_in(sign_in(app, "ann"))


def test_a_new_password_ends_all_other_logins_and_the_old_cookie(
    app: Flask, parts: Parts, ann: Person
) -> None:
    elsewhere, thief = sign_in(app, "ann"), app.test_client()
    stolen = ann.browser.get_cookie("agentapp")
    assert stolen
    thief.set_cookie("agentapp", stolen.value)
    assert change(ann) == 303
    assert not is_signed_in(elsewhere)
    assert thief.get("/account", headers=JSON).status_code == 401, "also with this browser's own old cookie"
    assert is_signed_in(ann)
    assert audited(parts).count("password-changed") == 1


def test_guesses_of_the_old_password_count_as_failed_sign_ins(app: Flask, ann: Person) -> None:
    codes = [change(ann, old=f"guess number {n}") for n in range(12)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert change(ann) == 429, "nor is the right one looked at then"


def test_logins_are_listed_with_where_and_when(app: Flask, ann: Person) -> None:
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    data = {"csrf_token": csrf, "username": "ann", "password": PASSWORD}
    browser.post("/login", data=data, headers={**PAGE, "User-Agent": FIREFOX})
    page = ann.get("/account").text
    assert "Firefox on Linux" in page
    assert "127.0.0.1" in page
    assert page.count("this browser") == 1
    assert len(login_ids(ann)) == 1, "its own is not one of those to end"


def test_one_login_is_ended_and_no_other(app: Flask, parts: Parts, ann: Person) -> None:
    second = sign_in(app, "ann")
    (id_of_second,) = login_ids(ann)
    third = sign_in(app, "ann")
    assert ann.post(f"/account/logins/{id_of_second}/end").status_code == 303
    assert (is_signed_in(ann), is_signed_in(second), is_signed_in(third)) == (True, False, True)
    assert ann.post(f"/account/logins/{id_of_second}/end").status_code == 404
    assert audited(parts).count("login-ended") == 1


def test_all_other_logins_are_ended(app: Flask, parts: Parts, ann: Person, bob: Person) -> None:
    others = [sign_in(app, "ann") for _ in range(3)]
    assert ann.post("/account/logins/end-others").status_code == 303
    assert [is_signed_in(each) for each in others] == [False] * 3
    assert is_signed_in(ann)
    assert is_signed_in(bob)
    assert audited(parts).count("logins-ended") == 1


def test_nobody_ends_the_login_of_somebody_else(app: Flask, ann: Person, bob: Person) -> None:
    second = sign_in(app, "bob")
    (id_of_bobs,) = login_ids(bob)
    assert ann.post(f"/account/logins/{id_of_bobs}/end").status_code == 404
    assert is_signed_in(second)


def test_the_page_names_logins_by_something_that_opens_none(app: Flask, parts: Parts, ann: Person) -> None:
    sign_in(app, "ann")
    (shown,) = login_ids(ann)
    with parts.db.writing() as db:
        digests = db.scalars(select(Login.digest)).all()
    assert not any(shown in digest for digest in digests)


def test_when_a_login_was_used_is_noted_by_the_heartbeat_and_not_with_each_request(
    app: Flask, parts: Parts, ann: Person
) -> None:
    ann.get("/chat")
    parts.seen_logins.run(0.0)
    long_ago = datetime.now(UTC) - timedelta(days=2)
    with parts.db.writing() as db:
        for row in db.scalars(select(Login)):
            row.seen_at = long_ago
    for _ in range(3):
        ann.get("/chat")
    parts.seen_logins.run(0.0)
    with parts.db.writing() as db:
        assert db.scalars(select(Login.seen_at)).all() == [long_ago], f"it was noted {SEEN_EVERY} ago or less"
    again = sign_in(app, "ann")
    again.get("/chat")
    parts.seen_logins.run(0.0)
    with parts.db.writing() as db:
        seen = db.scalars(select(Login.seen_at)).all()
    assert sorted(at > long_ago for at in seen if at) == [False, True]


def owner_of(parts: Parts, name: str) -> UserScope:
    with parts.db.writing() as db:
        user, tenant = db.execute(select(User.id, User.tenant_id).where(User.name == name)).one()
    return UserScope(request_id=new_id(), tenant_id=tenant, user_id=user)


def use(parts: Parts, name: str, day: date, microusd: int, agent: str = "desk") -> None:
    scope = owner_of(parts, name)
    row = UsageDay(
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        day=day.isoformat(),
        agent=agent,
        model="m",
        turns=2,
        model_calls=3,
        input_tokens=1_000,
        output_tokens=234,
        cost_microusd=microusd,
    )
    with parts.db.writing() as db:
        db.add(row)


def test_usage_is_the_users_own_of_this_month(app: Flask, parts: Parts, ann: Person, bob: Person) -> None:
    today = datetime.now(UTC).date()
    first = today.replace(day=1)
    use(parts, "ann", today, 1_250_000)
    use(parts, "ann", today, 250_000, agent="maths")
    use(parts, "ann", first - timedelta(days=1), 3_000_000)
    use(parts, "ann", (first - timedelta(days=1)).replace(day=1) - timedelta(days=1), 77_000_000)
    use(parts, "bob", today, 40_000_000)
    page = ann.get("/account").text
    assert "<dd>$1.50</dd>" in page
    assert "<dd>2,468</dd>" in page
    assert "2 messages, $3.00." in page
    assert "$40" not in page
    assert "$77" not in page


def test_a_turn_is_in_the_usage_at_once(ann: Person) -> None:
    ann.ask(ann.new_chat(), "Hello")
    assert "<dt>Messages</dt><dd>1</dd>" in ann.get("/account").text


def test_limits_are_those_in_force(parts: Parts, settings: Settings, ann: Person) -> None:
    page = ann.get("/account").text
    assert "60 a minute" in page
    assert "<td>$5</td>" in page
    scope = owner_of(parts, "ann")
    with parts.binder.bound(scope):
        parts.admin.limits.change("user", "ann", {"budget": "7.5", "rate": "10/15minutes"}, None, scope)
    page = ann.get("/account").text
    assert "<td>$7.50</td>" in page
    assert "10 in 15 minutes" in page


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (FIREFOX, "Firefox on Linux"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 14_0) Version/17.0 Safari/605.1.15", "Safari on macOS"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.5.0", "curl"),
        ("", "Unknown browser"),
        ("something (Windows)", "Unknown browser on Windows"),
    ],
)
def test_a_browser_is_called_by_its_name(said: str, words: str) -> None:
    assert browser_in_words(said) == words


def test_what_a_browser_says_of_itself_can_be_stored_and_shown() -> None:
    assert kept("a\x00b\nc\ud800" + "x" * 500, 10) == "a b c xxxx"
    assert kept(None, 10) == ""


def test_a_digest_is_stored_and_not_the_token(parts: Parts, ann: Person) -> None:
    with parts.db.writing() as db:
        (stored,) = db.scalars(select(Login.digest)).all()
    assert len(stored) == len(digest_of("x")) == 64
