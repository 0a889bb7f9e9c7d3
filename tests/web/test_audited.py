"""What people do is in the audit log: who, what, and nothing that they typed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.isolation import new_id
from agentapp.storage import opened_logins
from agentapp.storage.db import Database
from agentapp.storage.models import Login
from agentapp.web.parts import Parts
from tests.support.app_inspection import likeness
from tests.support.audit_log import audited, rows, told, who
from tests.support.statements import statements_noted
from tests.support.users import JSON, PAGE, PASSWORD, Person, csrf_of, person

SECRET = "the purple elephant"


def try_(app: Flask, name: str, password: str = "not the password", address: str = "192.0.2.1") -> int:
    browser, at = app.test_client(), {"REMOTE_ADDR": address}
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": name, "password": password}
    return browser.post("/login", data=body, headers=JSON, environ_overrides=at).status_code


def what(app: Flask, *actions: str) -> list[tuple[str, str, str | None, str | None, dict[str, Any]]]:
    return [told(row) for row in audited(app, *actions)]


def test_signing_in_and_out_is_told_with_the_request(app: Flask, ann: Person) -> None:
    signed_out = ann.post("/logout")
    ids = who(app, "ann")
    expected = [
        (action, f"user:{ids.user_id}", ids.tenant_id, ids.user_id, detail)
        for action, detail in (("user-added", {"role": "member"}), ("signed-in", {}), ("signed-out", {}))
    ]
    expected[0] = (*expected[0][:3], None, expected[0][4])  # by the command line, which is nobody
    assert what(app) == expected
    assert [row.request_id for row in audited(app)][2] == signed_out.headers["X-Request-ID"]


def test_there_is_no_login_without_its_row(app: Flask, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.accounts.add("ann", PASSWORD)

    def fail(*anything: object) -> None:
        raise RuntimeError("no row")

    monkeypatch.setattr(opened_logins, "add_entry", fail)
    assert try_(app, "ann", PASSWORD) == 500
    with parts.db.writing() as db:
        assert db.query(Login).count() == 0


def test_a_sign_in_has_one_statement_more_than_without_its_row(
    app: Flask, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.accounts.add("ann", PASSWORD)
    numbers = []
    for keep in (True, False):
        if not keep:
            monkeypatch.setattr(opened_logins, "add_entry", lambda *anything: None)
        statements: list[str] = []
        with statements_noted(lambda statement, values, found=statements: found.append(statement)):
            assert try_(app, "ann", PASSWORD) == 303
        numbers.append(len(statements))
    assert numbers[0] == numbers[1] + 1


def test_a_login_that_another_takes_the_place_of_has_ended(app: Flask, parts: Parts, ann: Person) -> None:
    person(app, "bob")
    body = {"csrf_token": ann.csrf, "username": "bob", "password": PASSWORD}
    assert ann.browser.post("/login", data=body, headers=PAGE).status_code == 303
    ended, began = what(app, "signed-in", "signed-out")[-2:]
    assert (ended[0], ended[3]) == ("signed-out", who(app, "ann").user_id)
    assert (began[0], began[3]) == ("signed-in", who(app, "bob").user_id)


def test_signing_out_twice_is_told_once(app: Flask, ann: Person) -> None:
    for _ in range(2):
        ann.post("/logout")
    assert len(what(app, "signed-out")) == 1


def test_the_first_account_is_told(app: Flask, parts: Parts) -> None:
    token = parts.accounts.new_setup_token()
    browser = app.test_client()
    csrf = csrf_of(browser.get(f"/setup?token={token}", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": "opal", "password": PASSWORD, "token": token}
    assert browser.post("/setup", data=body, headers=PAGE).status_code == 303
    added, signed_in = what(app)
    assert (added[0], added[4]) == ("user-added", {"role": "operator"})
    assert (signed_in[0], signed_in[3]) == ("signed-in", who(app, "opal").user_id)


def test_a_wrong_password_is_told_of_the_account_and_a_wrong_name_of_nobody(
    app: Flask, ann: Person, settings: Settings
) -> None:
    for name in ("ann", "Ann ", f"{SECRET}", "nobody"):
        assert try_(app, name) == 401
    ids = who(app, "ann")
    assert what(app, "sign-in-failed") == [
        ("sign-in-failed", f"user:{ids.user_id}", ids.tenant_id, ids.user_id, {"count": 2}),
        ("sign-in-failed", "", None, None, {"count": 2}),
    ]
    assert not any(SECRET in repr(told(row)) or "not the password" in repr(told(row)) for row in audited(app))


def test_who_guesses_the_old_password_is_told_too(app: Flask, ann: Person) -> None:
    answer = ann.post("/account/password", old_password="a guess", new_password="three words more here")
    assert answer.status_code == 401
    ((_, _, _, user_id, _),) = what(app, "sign-in-failed")
    assert user_id == who(app, "ann").user_id


def test_sign_ins_that_are_refused_are_told_in_one_row(
    settings: Settings, make_app: Callable[..., Flask]
) -> None:
    app = make_app(None, replace(settings, rate_login=(2, 900.0)))
    person(app, "ann")
    assert [try_(app, "ann") for _ in range(40)] == [401] * 2 + [429] * 38
    ids = who(app, "ann")
    assert what(app, "sign-in-throttled") == [
        ("sign-in-throttled", f"user:{ids.user_id}", ids.tenant_id, ids.user_id, {"count": 38})
    ]


def test_a_refused_sign_in_asks_the_database_nothing_for_the_log(
    settings: Settings, make_app: Callable[..., Flask]
) -> None:
    app = make_app(None, replace(settings, rate_login=(1, 900.0)))
    parts: Parts = app.extensions["agentapp"]
    assert [try_(app, "ann") for _ in range(2)] == [401, 429]
    statements: list[str] = []
    with statements_noted(lambda statement, values: statements.append(statement)):
        assert try_(app, "ann") == 429
    assert not [each for each in statements if "users" in each or "audit_log" in each]
    assert rows(parts.db) == []


@pytest.fixture
def chat(ann: Person) -> str:
    made = ann.new_chat()
    ann.ask(made, f"remember {SECRET}")
    return made


def test_asking_for_what_is_not_ones_own_is_told_alike_for_what_is_there_and_what_is_not(
    app: Flask, ann: Person, bob: Person, chat: str
) -> None:
    absent = new_id()
    answers = [bob.get(f"/chat/{each}") for each in (chat, absent)]
    assert likeness(answers[0], chat) == likeness(answers[1], absent)
    ids = who(app, "bob")
    assert what(app, "lookup-denied") == [
        ("lookup-denied", f"session:{each}", ids.tenant_id, ids.user_id, {"count": 1})
        for each in (chat, absent)
    ]
    requests = [row.request_id for row in audited(app, "lookup-denied")]
    assert requests == [answer.headers["X-Request-ID"] for answer in answers]


def test_the_turn_that_was_asked_for_is_told(app: Flask, ann: Person, bob: Person, chat: str) -> None:
    mine, turns = bob.new_chat(), [new_id() for _ in range(4)]
    bob.ask(mine, "hello")
    bob.get(f"/chat/{mine}/turns/{turns[0]}/events")
    bob.post(f"/chat/{mine}/turns/{turns[1]}/stop")
    bob.get(f"/chat/{mine}?version={turns[2]}")
    bob.send(mine, "hello", after=turns[3])
    bob.get(f"/chat/{mine}?version={SECRET.replace(' ', '+')}")
    subjects = [row.subject for row in audited(app, "lookup-denied")]
    assert sorted(subjects) == sorted([*(f"turn:{turn}" for turn in turns), f"session:{mine}"])


def test_a_denied_look_up_costs_the_database_nothing_more(
    app: Flask, parts: Parts, ann: Person, bob: Person, chat: str
) -> None:
    written: list[str] = []
    with statements_noted(
        lambda statement, values: written.append(statement) if "audit_log" in statement else None, parts.db
    ):
        parts.turns.heartbeat.close()
        for _ in range(3):
            bob.get(f"/chat/{chat}/export.json")
        assert written == []
    assert [row.detail for row in audited(app, "lookup-denied")] == [{"count": 3}]


def test_nothing_is_told_of_strangers_and_of_pages_that_do_not_exist(app: Flask, ann: Person) -> None:
    app.test_client().get(f"/chat/{new_id()}", headers=PAGE)
    ann.get("/no-such-page")
    ann.post(f"/account/logins/{'0' * 24}/end")
    assert what(app, "lookup-denied") == []


def test_exports_are_told_with_their_format(app: Flask, ann: Person, chat: str) -> None:
    for ending in ("json", "md", "json"):
        assert ann.get(f"/chat/{chat}/export.{ending}").status_code == 200
    ids = who(app, "ann")
    assert what(app, "chat-exported") == [
        ("chat-exported", f"session:{chat}", ids.tenant_id, ids.user_id, {"count": count, "format": ending})
        for ending, count in (("json", 2), ("md", 1))
    ]


def test_a_deleted_chat_is_told_in_the_same_transaction(
    app: Flask, parts: Parts, ann: Person, bob: Person, chat: str
) -> None:
    bob.post(f"/chat/{chat}/delete")
    assert what(app, "chat-deleted") == []
    deleted = ann.post(f"/chat/{chat}/delete")
    ids = who(app, "ann")
    assert what(app, "chat-deleted") == [("chat-deleted", f"session:{chat}", ids.tenant_id, ids.user_id, {})]
    (row,) = audited(app, "chat-deleted")
    assert row.request_id == deleted.headers["X-Request-ID"]
    assert SECRET not in repr([told(each) for each in audited(app)])


def test_what_was_counted_is_stored_when_the_worker_ends(
    settings: Settings, make_app: Callable[..., Flask]
) -> None:
    app = make_app()
    bob = person(app, "bob")
    parts: Parts = app.extensions["agentapp"]
    parts.start()
    bob.get(f"/chat/{new_id()}")
    parts.close()
    assert len(rows(parts.db, "lookup-denied")) == 1
    parts.db.close()


def test_a_database_that_is_away_fails_no_answer_and_no_end(
    settings: Settings,
    make_app: Callable[..., Flask],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app()
    bob = person(app, "bob")
    app.extensions["agentapp"].start()
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(Database, "transaction", lambda *anything, **more: 1 / 0)
        assert bob.get(f"/chat/{new_id()}").status_code == 404
        app.extensions["agentapp"].close()
    assert "at the end of store counted audit rows: ZeroDivisionError" in caplog.text


def test_a_turn_writes_no_row(app: Flask, ann: Person) -> None:
    chat = ann.new_chat()
    before = len(audited(app))
    ann.ask(chat, "hello")
    assert len(audited(app)) == before
