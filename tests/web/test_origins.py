"""Which names the server answers to, and that other sites' pages can change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.parsing import ADDRESSES, host_name
from agentapp.web.parts import Parts
from tests.support.app_inspection import FIELDS, changing, dump, path_of
from tests.support.users import JSON, PAGE, PASSWORD, Person, csrf_of, sign_in

HOSTS = ("chat.example.org", "192.0.2.1", "2001:db8::1")
EVIL = "evil.example"
OURS = ["chat.example.org", "CHAT.Example.ORG", "chat.example.org.", "chat.example.org:8000", "192.0.2.1:80"]
OURS += ["chat.example.org:", "[2001:DB8::1]", "[2001:db8:0::1]:8000"]
FOREIGN = [EVIL, f"{EVIL}:8000", "localhost", "127.0.0.1", "chat.example.org.evil.example", "example.org"]
FOREIGN += ["chat.example.org@evil.example", "evil.example@chat.example.org", "chat.example.org,evil.example"]
FOREIGN += [
    "",
    " ",
    "[::1]",
    "2001:db8::1",
    "[2001:db8::1",
    "chat.example.org:x",
    "chat.example.org/",
    ".",
    "..",
]
FOREIGN += ["xchat.example.org", "chat.example.org..", "chat.example.org\\@evil.example", "chat.example.org#"]


@pytest.fixture
def make_named(settings: Settings, make_app: Callable[..., Flask]) -> Callable[..., FlaskClient]:
    def make(**changed: Any) -> FlaskClient:
        return make_app(None, replace(settings, **{"hosts": HOSTS, **changed})).test_client()

    return make


def ask(browser: FlaskClient, host: str, path: str = "/login", headers: Any = PAGE) -> TestResponse:
    return browser.get(path, headers=headers, environ_overrides={"HTTP_HOST": host})


@pytest.mark.parametrize("host", OURS)
def test_our_names_are_answered_however_they_are_written(
    make_named: Callable[..., FlaskClient], host: str
) -> None:
    assert ask(make_named(), host).status_code == 200


def test_elsewhere_without_names_only_addresses_are_answered(make_named: Callable[..., FlaskClient]) -> None:
    browser = make_named(hosts=("localhost", ADDRESSES))
    for host in ("localhost:8000", "192.0.2.7", "127.0.0.1:8000", "[::1]:8000"):
        assert ask(browser, host).status_code == 200, host
    for host in (EVIL, "", "192.0.2.7.evil.example", ADDRESSES, "0x7f.1", "1.2.3"):
        assert ask(browser, host).status_code == 400, host


@pytest.mark.parametrize("headers", [PAGE, JSON], ids=["page", "script"])
@pytest.mark.parametrize("host", FOREIGN)
def test_any_other_name_is_400_and_is_not_repeated(
    make_named: Callable[..., FlaskClient], host: str, headers: dict[str, str]
) -> None:
    browser = make_named()
    for path in ("/login", "/chat", "/chat//x", "/static/app.js", "/nowhere"):
        answer = ask(browser, host, path, headers=headers)
        assert answer.status_code == 400, path
        assert EVIL not in answer.text + str(answer.headers)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        if headers is JSON:
            assert (answer.mimetype, answer.json["code"]) == ("application/problem+json", "bad-request")
        else:
            assert answer.mimetype == "text/html"


def test_health_checks_come_by_any_name(make_named: Callable[..., FlaskClient]) -> None:
    for path in ("/livez", "/readyz"):
        assert ask(make_named(), "10.1.2.3:8000", path).status_code == 200


def test_without_the_setting_any_name_is_answered_and_no_redirect_repeats_it(client: FlaskClient) -> None:
    assert ask(client, EVIL).status_code == 200
    for path in ("//login", "/chat", "/static//app.js?v=1"):
        answer = ask(client, EVIL, path)
        assert answer.status_code in (303, 308), path
        assert answer.location.startswith("/"), "a path, whoever asked"
        assert not answer.location.startswith("//")


def test_the_forwarded_host_counts_behind_a_trusted_proxy_and_only_there(
    make_named: Callable[..., FlaskClient],
) -> None:
    ours = {**PAGE, "X-Forwarded-Host": "chat.example.org"}
    foreign = {**PAGE, "X-Forwarded-Host": EVIL}
    assert ask(make_named(), EVIL, headers=ours).status_code == 400
    assert ask(make_named(), "chat.example.org", headers=foreign).status_code == 200
    assert ask(make_named(trusted_proxies=1), "127.0.0.1:8000", headers=ours).status_code == 200
    assert ask(make_named(trusted_proxies=1), "chat.example.org", headers=foreign).status_code == 400


@pytest.mark.parametrize("host", ["", "a b", "[]", "[g::]", "a@b", "a/b", "é", "::1", "[::1]x", "a:b"])
def test_what_is_no_host_has_no_name(host: str) -> None:
    assert host_name(host) is None


FROM_ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "same-origin,cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://localhost"},
    {"Origin": "http://localhost:8000"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost@evil.example"},
    {"Origin": "http://localhost,http://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "localhost"},
]
FROM_HERE = [
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://localhost"},
    {},
]


def test_nothing_is_changed_from_another_site_even_with_the_right_token(
    app: Flask, settings: Settings, parts: Parts, ann: Person
) -> None:
    chat = ann.new_chat()
    ids = {"session_id": chat, "turn_id": ann.ask(chat, "hello")["turn_id"]}
    token = csrf_of(ann.get("/chat").text)
    before = dump(settings)
    for foreign in FROM_ELSEWHERE:
        for rule, method in changing(app):
            data = {"csrf_token": token, **FIELDS.get(rule.endpoint, {})}
            path = path_of(app, rule, **ids)
            answer = ann.browser.open(path, method=method, data=data, headers={**JSON, **foreign})
            assert (answer.status_code, answer.json["code"]) == (403, "csrf"), f"{method} {path} {foreign}"
            assert "another site" in answer.json["detail"]
            assert "evil" not in answer.text
    assert dump(settings) == before


@pytest.mark.parametrize("here", FROM_HERE)
def test_our_own_pages_and_scripts_can_send(ann: Person, here: dict[str, str]) -> None:
    assert ann.post("/chat", {**PAGE, **here}).status_code == 303


@pytest.mark.parametrize("here", FROM_HERE)
def test_that_it_comes_from_here_replaces_no_token(ann: Person, here: dict[str, str]) -> None:
    assert ann.browser.post("/chat", headers={**JSON, **here}).status_code == 403


def test_what_changes_nothing_can_be_linked_to_from_anywhere(ann: Person) -> None:
    for foreign in FROM_ELSEWHERE:
        assert ann.browser.get("/chat", headers={**PAGE, **foreign}).status_code == 200


@pytest.mark.parametrize(
    ("changed", "host", "forwarded", "origin"),
    [
        ({"https": True}, "chat.example.org", {}, "https://chat.example.org"),
        ({"https": True}, "chat.example.org:443", {}, "https://chat.example.org"),
        ({}, "chat.example.org:80", {}, "http://chat.example.org"),
        ({}, "Chat.Example.org:8000", {}, "http://chat.example.org:8000"),
        ({}, "[::1]:8000", {}, "http://[::1]:8000"),
        (
            {"trusted_proxies": 1},
            "127.0.0.1:8000",
            {"X-Forwarded-Host": "chat.example.org", "X-Forwarded-Proto": "https"},
            "https://chat.example.org",
        ),
    ],
)
def test_the_origin_is_ours_as_the_client_sees_us(
    settings: Settings,
    make_app: Callable[..., Flask],
    changed: dict[str, Any],
    host: str,
    forwarded: dict[str, str],
    origin: str,
) -> None:
    browser = make_app(None, replace(settings, **changed)).test_client()

    def detail(sent_by: str) -> str:
        headers = {**JSON, **forwarded, "Origin": sent_by}
        answer = browser.post("/theme", headers=headers, environ_overrides={"HTTP_HOST": host})
        return str(answer.json["detail"])

    assert "another site" not in detail(origin), "only the token is missing"
    assert "another site" in detail(origin.replace("https://", "http://", 1) + ".evil.example")
    other_scheme = (
        origin.replace("https:", "http:") if "https" in origin else origin.replace("http:", "https:")
    )
    assert "another site" in detail(other_scheme)


def test_signing_in_from_another_site_is_refused_before_the_password_is_looked_at(
    app: Flask, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a page could sign its visitor in as somebody else, and read what they then write."""
    parts.accounts.add("ann", PASSWORD)
    looked: list[str] = []
    monkeypatch.setattr(parts.accounts, "sign_in", lambda *given: looked.append("at it"))
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": "ann", "password": PASSWORD}
    answer = browser.post("/login", data=body, headers={**PAGE, "Origin": f"http://{EVIL}"})
    assert answer.status_code == 403
    assert looked == []
    monkeypatch.undo()
    assert sign_in(app, "ann").get("/chat").status_code == 200
