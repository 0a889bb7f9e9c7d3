"""Whatever changes something wants the token, and what is asked for with GET changes nothing."""

from __future__ import annotations

from typing import Any

import flask_wtf.csrf
import pytest
from flask import Flask
from flask.testing import FlaskClient

from agentapp.config import Settings
from agentapp.web.parts import Parts
from tests.support.app_inspection import FIELDS, changing, dump, path_of, routes
from tests.support.users import EVENTS, JSON, PAGE, Person, csrf_of, sign_in

WAYS = {"page": PAGE, "script": JSON, "events": EVENTS, "anything": {"Accept": "*/*"}}

# Not a good token is the reason there: Ann is no admin, and there is no such login.
EXPECTED = {"admin": (403,), "account.end_login": (404,)}


@pytest.fixture
def ids(ann: Person) -> dict[str, str]:
    """A chat with a turn and a note in it."""
    made = ann.new_chat()
    return {"session_id": made, "turn_id": ann.ask(made, "remember to water the plants")["turn_id"]}


def test_the_walk_finds_every_route_there_is(app: Flask) -> None:
    found = {rule.endpoint for rule, _ in changing(app)}
    assert {"auth.login", "auth.logout", "auth.setup", "theme", "chat.create"} <= found
    assert {"chat.rename", "chat.delete"} <= found
    assert {"turns.send", "turns.retry", "turns.stop"} <= found


@pytest.mark.parametrize("headers", WAYS.values(), ids=WAYS)
def test_nothing_is_changed_without_a_token(
    app: Flask, settings: Settings, ann: Person, ids: dict[str, str], headers: dict[str, str]
) -> None:
    before = dump(settings)
    for rule, method in changing(app):
        path = path_of(app, rule, **ids)
        answer = ann.browser.open(path, method=method, data=FIELDS.get(rule.endpoint, {}), headers=headers)
        assert answer.status_code == 403, f"{method} {path}"
        if headers is PAGE:
            assert answer.mimetype == "text/html"
            assert "out of date" in answer.text
        else:
            assert (answer.mimetype, answer.json["code"]) == ("application/problem+json", "csrf")
    assert dump(settings) == before


def test_nothing_is_changed_with_a_wrong_token(
    app: Flask, settings: Settings, ann: Person, bob: Person, ids: dict[str, str]
) -> None:
    before = dump(settings)
    stale = csrf_of(app.test_client().get("/login", headers=PAGE).text)
    payload, _, signature = ann.csrf.rpartition(".")
    for token in (bob.csrf, stale, "\xe9", f"{payload}.{signature[::-1]}", "." * 4000):
        for rule, method in changing(app):
            path = path_of(app, rule, **ids)
            body = FIELDS.get(rule.endpoint, {})
            as_field = ann.browser.open(path, method=method, data={"csrf_token": token, **body}, headers=JSON)
            by_header = {**JSON, "X-CSRFToken": token}
            as_header = ann.browser.open(path, method=method, json=body, headers=by_header)
            assert (as_field.status_code, as_header.status_code) == (403, 403), f"{method} {path} {token}"
            assert as_field.json["code"] == as_header.json["code"] == "csrf"
    assert dump(settings) == before


def test_a_token_in_the_address_is_no_token(settings: Settings, ann: Person) -> None:
    before = dump(settings)
    assert ann.browser.post(f"/chat?csrf_token={ann.csrf}", headers=JSON).status_code == 403
    assert dump(settings) == before


def send(person: Person, path: str, method: str, body: dict[str, Any], way: str) -> int:
    """The request as a form, as a form of a script with the header, as multipart, or as JSON."""
    header = {**JSON, "X-CSRFToken": person.csrf}
    given: dict[str, Any] = {
        "form": {"data": {"csrf_token": person.csrf, **body}, "headers": JSON},
        "header": {"data": body, "headers": header},
        "multipart": {
            "data": {"csrf_token": person.csrf, **body},
            "headers": JSON,
            "content_type": "multipart/form-data",
        },
        "json": {"json": body, "headers": header},
        "token in json": {"json": {"csrf_token": person.csrf, **body}, "headers": JSON},
    }[way]
    return person.browser.open(path, method=method, **given).status_code


@pytest.mark.parametrize("way", ["form", "header", "multipart", "json", "token in json"])
def test_everything_works_with_the_token(app: Flask, parts: Parts, ann: Person, way: str) -> None:
    for rule, method in changing(app):
        if rule.endpoint in ("auth.setup", "auth.logout"):
            continue
        chat = sign_in(app, "ann").new_chat()
        turn = ann.ask(chat, "hello")["turn_id"] if "turn_id" in rule.arguments else ""
        path = path_of(app, rule, session_id=chat, turn_id=turn)
        status = send(ann, path, method, FIELDS.get(rule.endpoint, {}), way)
        expected = EXPECTED.get(rule.endpoint.partition(".")[0], EXPECTED.get(rule.endpoint, (200, 303)))
        assert status in expected, f"{method} {path}: {status}"
        if rule.endpoint in ("auth.login", "account.change_password"):
            ann = Person("ann", ann.browser, csrf_of(ann.get("/chat").text))
    assert send(ann, "/logout", "POST", {}, way) == 303


@pytest.mark.parametrize("way", ["form", "header", "multipart", "json", "token in json"])
def test_set_up_works_with_the_token(client: FlaskClient, parts: Parts, way: str) -> None:
    token = parts.accounts.new_setup_token()
    nobody = Person("", client, csrf_of(client.get("/login", headers=PAGE).text))
    assert send(nobody, f"/setup?token={token}", "POST", FIELDS["auth.setup"], way) == 303


def test_the_token_may_stand_in_the_body_of_set_up_too(client: FlaskClient, parts: Parts) -> None:
    token = parts.accounts.new_setup_token()
    nobody = Person("", client, csrf_of(client.get("/login", headers=PAGE).text))
    assert send(nobody, "/setup", "POST", {**FIELDS["auth.setup"], "token": token or ""}, "json") == 303


def test_a_page_left_open_can_still_send(ann: Person) -> None:
    for _ in range(3):
        ann.get("/chat")
    assert ann.post("/chat").status_code == 303


def test_nothing_that_is_only_asked_for_changes_anything(
    app: Flask, settings: Settings, parts: Parts, client: FlaskClient, ann: Person, ids: dict[str, str]
) -> None:
    before = dump(settings)
    asked = 0
    for rule, method in routes(app):
        if method not in ("GET", "HEAD", "OPTIONS"):
            continue
        query = "?token=x&q=plants&page=1&next=/chat&title=x&message=hi&theme=dark&after=1"
        path = path_of(app, rule, **ids) + query
        for browser in (ann.browser, client):
            for headers in WAYS.values():
                answer = browser.open(path, method=method, headers=headers)
                answer.close()
                assert answer.status_code < 500, path
                assert "theme=" not in answer.headers.get("Set-Cookie", "")
                asked += 1
    assert asked > 100
    assert dump(settings) == before


def test_asking_for_the_set_up_page_does_not_use_the_link_up(
    settings: Settings, client: FlaskClient, parts: Parts
) -> None:
    token = parts.accounts.new_setup_token()
    before = dump(settings)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert client.open(f"/setup?token={token}", method=method, headers=PAGE).status_code == 200
    assert dump(settings) == before


def test_a_token_that_was_found_valid_is_valid_for_its_own_session_only(
    app: Flask, settings: Settings, ann: Person, bob: Person
) -> None:
    def create(browser: FlaskClient, token: str) -> int:
        return browser.post("/chat", data={"csrf_token": token}, headers=JSON).status_code

    again = sign_in(app, "ann")
    assert [create(ann.browser, ann.csrf) for _ in range(2)] == [303, 303]
    before = dump(settings)
    for other in (bob.browser, again.browser):
        assert [create(other, ann.csrf) for _ in range(2)] == [403, 403]
    for like_it in (ann.csrf[:-3] + "AAA", ann.csrf + "A", ann.csrf.rpartition(".")[0]):
        assert [create(ann.browser, like_it) for _ in range(2)] == [403, 403]
    assert dump(settings) == before
    assert create(ann.browser, ann.csrf) == 303


def test_a_token_that_nobody_has_checked_is_not_found_valid(app: Flask, ann: Person) -> None:
    """flask-wtf lets pass whatever is sent to an address that does not exist."""
    forged = "forged"
    assert ann.browser.post("/nowhere", data={"csrf_token": forged}, headers=JSON).status_code == 404
    assert ann.browser.post("/chat", data={"csrf_token": forged}, headers=JSON).status_code == 403


def test_the_same_token_is_checked_once(app: Flask, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    validate = flask_wtf.csrf.validate_csrf

    def noted(token: object) -> None:
        checked.append(token)
        validate(token)

    monkeypatch.setattr(flask_wtf.csrf, "validate_csrf", noted)
    for _ in range(3):
        assert ann.browser.post("/chat", data={"csrf_token": ann.csrf}, headers=JSON).status_code == 303
    assert len(checked) <= 1
