"""A cookie is verified once and believed no longer, no wider and for nobody else because of that."""

from __future__ import annotations

import time

import pytest
from flask import Flask
from itsdangerous import BadSignature, SignatureExpired

from agentapp.storage.opened_logins import LOGIN_LIFETIME
from agentapp.web import sessions as module
from agentapp.web.sessions import Remembered, Sessions
from tests.support.users import JSON, Person, sign_in

AGE = int(LOGIN_LIFETIME.total_seconds())


@pytest.fixture
def sessions(app: Flask) -> Sessions:
    found = app.session_interface
    assert isinstance(found, Sessions)
    return found


def signed(app: Flask, **payload: object) -> str:
    signer = app.session_interface.get_signing_serializer(app)  # type: ignore[attr-defined]
    return str(signer.dumps(payload))


def set_clock(app: Flask, monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    then = time.time() + later
    monkeypatch.setattr(app.extensions["agentapp"].db.clock, "_wall", lambda: then)


def cookie_of(somebody: Person) -> str:
    found = somebody.browser.get_cookie("agentapp")
    assert found is not None
    return found.value


def test_the_same_cookie_is_verified_once(
    app: Flask, sessions: Sessions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = cookie_of(ann)
    assert app.extensions["agentapp.user_of"](f"agentapp={cookie}") is not None
    monkeypatch.setattr(sessions, "_signer", None)  # nothing could be verified from here on
    assert sessions.loads(cookie)["_user_id"]
    with pytest.raises(BadSignature):
        sessions.loads(f"{cookie}A")


def test_a_cookie_that_was_verified_is_refused_when_its_time_is_over(
    app: Flask, sessions: Sessions, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie, user_of = cookie_of(ann), app.extensions["agentapp.user_of"]
    assert user_of(f"agentapp={cookie}") is not None
    assert ann.browser.get("/chat", headers=JSON).status_code == 200
    set_clock(app, monkeypatch, AGE + 5)
    with pytest.raises(SignatureExpired):
        sessions.loads(cookie)
    assert user_of(f"agentapp={cookie}") is None
    with app.test_request_context(headers={"Cookie": f"agentapp={cookie}"}) as opened:
        assert dict(opened.session) == {}


def test_a_cookie_that_is_too_old_when_it_is_first_seen_is_refused(
    app: Flask, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = signed(app, name="value")
    set_clock(app, monkeypatch, AGE + 5)
    with pytest.raises(SignatureExpired):
        sessions.loads(cookie)


@pytest.mark.parametrize("behind", [1, 30, 120])
def test_a_cookie_that_a_host_ahead_has_signed_counts_at_once(
    app: Flask, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """Its clock may be a moment ahead, and that of an older release may be wrong."""
    cookie = signed(app, name="value")
    set_clock(app, monkeypatch, -behind)
    assert sessions.loads(cookie) == {"name": "value"}, "it is verified"
    assert sessions.loads(cookie) == {"name": "value"}, "it was verified before"


def test_a_cookie_that_is_like_one_that_was_verified_is_refused(sessions: Sessions, ann: Person) -> None:
    cookie = cookie_of(ann)
    payload, stamp, signature = cookie.rsplit(".", 2)
    sessions.loads(cookie)
    for other in (
        cookie[:-3] + "AAA",
        f"{payload}.{stamp}",
        f"{payload}A.{stamp}.{signature}",
        f"{payload}.{stamp[::-1]}.{signature}",
    ):
        for _ in range(2):
            with pytest.raises(BadSignature):
                sessions.loads(other)


def test_a_cookie_that_was_verified_ends_with_its_login(app: Flask, sessions: Sessions, ann: Person) -> None:
    kept = cookie_of(ann)
    ann.post("/logout")
    assert sessions.loads(kept)["_user_id"]
    browser = app.test_client()
    browser.set_cookie("agentapp", kept)
    assert browser.get("/chat", headers=JSON).status_code == 401
    assert sign_in(app, "ann").browser.get("/chat", headers=JSON).status_code == 200


def test_what_one_request_changes_in_its_session_no_other_sees(app: Flask, ann: Person) -> None:
    cookie = {"Cookie": f"agentapp={cookie_of(ann)}"}
    with app.test_request_context(headers=cookie) as first:
        before = dict(first.session)
        first.session["_user_id"] = "somebody else"
        first.session["more"] = 1
    with app.test_request_context(headers=cookie) as second:
        assert dict(second.session) == before


def test_what_could_be_changed_inside_is_verified_each_time(app: Flask, sessions: Sessions) -> None:
    cookie = signed(app, names=["a"])
    sessions.loads(cookie)["names"].append("b")
    assert sessions.loads(cookie) == {"names": ["a"]}


def test_a_session_that_did_not_change_is_not_sent_again(ann: Person) -> None:
    answer = ann.browser.get("/chat", headers=JSON)
    assert "Set-Cookie" not in answer.headers
    assert "Cookie" in answer.vary


def test_no_more_is_remembered_than_so_many_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    found: Remembered[int] = Remembered()
    for number, text in enumerate(("a", "b", "a", "c")):
        found.put(text, number)
    assert len(found) == 2
    assert [found.get(text) for text in "abc"] == [None, 1, 3]


def test_cookies_fill_no_more_memory_than_that(
    app: Flask, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    for number in range(9):
        assert sessions.loads(signed(app, number=number)) == {"number": number}
    assert len(sessions._cookies) == 3
