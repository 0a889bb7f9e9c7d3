"""Signing in and out: the login row is the truth, and everything else about a cookie is worth nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError
from flask import Flask, request
from flask.testing import FlaskClient
from flask_login.utils import encode_cookie
from sqlalchemy import text
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.errors import NotFound
from agentapp.isolation import RequestScope
from agentapp.storage.accounts import MOST_SETUP_LINKS, Accounts
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page, dump, likeness, sql
from tests.support.users import JSON, PAGE, PASSWORD, Person, csrf_of, person, sign_in

ELSEWHERE = [
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "\t//evil.example",
    " //evil.example",
    "http://evil.example",
    "https:evil.example",
    "http:/evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "evil.example",
    "%2f%2fevil.example",
    "?next=//evil.example",
    "/chat\\@evil.example",
    "/chat\r\nSet-Cookie: a=b",
    "/\0",
]
HARMLESS = ["/chat?q=a%20b&page=2", "/chat/abc#latest", "/%2f%2fevil.example", "/.//evil.example", "/chat/ü"]


def cookie_of(browser: FlaskClient, name: str = "agentapp") -> str:
    found = browser.get_cookie(name)
    assert found is not None
    return found.value


def with_cookie(app: Flask, value: str, name: str = "agentapp") -> FlaskClient:
    """Another browser that holds this cookie."""
    browser = app.test_client()
    browser.set_cookie(name, value)
    return browser


def is_signed_in(browser: FlaskClient) -> bool:
    script, page = browser.get("/chat", headers=JSON), browser.get("/chat", headers=PAGE)
    assert (script.status_code, page.status_code) in {(200, 200), (401, 303)}
    return page.status_code == 200


def try_login(
    browser: FlaskClient, name: str, password: str, headers: dict[str, str] = PAGE, **more: str
) -> TestResponse:
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": name, "password": password, **more}
    return browser.post("/login", data=body, headers=headers)


def flags_of(answer: TestResponse) -> set[str]:
    """Of the last cookie that it sets: after a sign-in, the login's."""
    return {part.strip() for part in answer.headers.getlist("Set-Cookie")[-1].split(";")[1:]}


def login_cookie(answer: TestResponse, name: str = "agentapp") -> str:
    (found,) = [each for each in answer.headers.getlist("Set-Cookie") if each.startswith(f"{name}=")]
    return found


def leads_to(location: str) -> str:
    """The host a browser would end up on: it drops tabs and line ends, and reads a backslash as a slash."""
    cleaned = location.strip().translate(str.maketrans({"\t": None, "\n": None, "\r": None, "\\": "/"}))
    return urlsplit(urljoin("http://localhost/login", cleaned)).netloc


def test_signing_in_leads_to_the_chats_and_signing_out_to_the_login_page(app: Flask, ann: Person) -> None:
    assert "ann" in ann.get("/chat").text
    answer = ann.post("/logout")
    assert (answer.status_code, answer.location) == (303, "/login")
    assert not is_signed_in(ann.browser)


def test_signing_in_works_with_json(app: Flask, ann: Person) -> None:
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    body = {"username": " ANN ", "password": PASSWORD}
    answer = browser.post("/login", json=body, headers={**JSON, "X-CSRFToken": csrf})
    assert answer.status_code == 303
    assert is_signed_in(browser)


def test_a_cookie_kept_from_before_logout_is_dead(app: Flask, ann: Person) -> None:
    kept = cookie_of(ann.browser)
    assert is_signed_in(with_cookie(app, kept))
    ann.post("/logout")
    assert not is_signed_in(with_cookie(app, kept))


def test_signing_out_takes_the_login_row_and_the_cookie_away(
    app: Flask, settings: Settings, ann: Person
) -> None:
    assert len(sql(settings, "SELECT * FROM logins")) == 1
    ann.post("/logout")
    assert sql(settings, "SELECT * FROM logins") == []
    assert ann.browser.get_cookie("agentapp") is None


def test_signing_out_here_leaves_the_other_browsers_signed_in(app: Flask, ann: Person) -> None:
    other = sign_in(app, "ann")
    ann.post("/logout")
    assert is_signed_in(other.browser)


def test_signing_in_again_ends_the_login_that_the_browser_had(
    app: Flask, settings: Settings, ann: Person, bob: Person
) -> None:
    other, kept = sign_in(app, "ann"), cookie_of(ann.browser)
    assert ann.post("/login", username="ann", password="not the password").status_code == 401
    assert is_signed_in(with_cookie(app, kept)), "a wrong password ended a login"
    assert ann.post("/login", username="ann", password=PASSWORD).status_code == 303
    assert not is_signed_in(with_cookie(app, kept))
    assert is_signed_in(ann.browser)
    assert is_signed_in(other.browser), "the login of another browser ended too"
    assert len(sql(settings, "SELECT * FROM logins")) == 3
    kept, page = cookie_of(ann.browser), ann.get("/chat")
    answer = ann.browser.post(
        "/login", data={"csrf_token": csrf_of(page.text), "username": "bob", "password": PASSWORD}
    )
    assert answer.status_code == 303
    assert not is_signed_in(with_cookie(app, kept)), "it is ended by another account too"
    assert is_signed_in(bob.browser)


def test_signing_out_without_being_signed_in_is_harmless(client: FlaskClient) -> None:
    csrf = csrf_of(client.get("/login", headers=PAGE).text)
    assert client.post("/logout", data={"csrf_token": csrf}).status_code == 303


def test_an_old_cookie_can_no_longer_change_anything(app: Flask, settings: Settings, ann: Person) -> None:
    chat, kept = ann.new_chat(), cookie_of(ann.browser)
    ann.post("/logout")
    before, thief = dump(settings), Person("ann", with_cookie(app, kept), ann.csrf)
    for path in ("/chat", f"/chat/{chat}/messages", f"/chat/{chat}/rename", f"/chat/{chat}/delete"):
        answer = thief.post(path, JSON, message="hi", title="mine now")
        assert (answer.status_code, answer.json["code"]) == (401, "login-required")
    assert dump(settings) == before


@pytest.mark.parametrize(
    "end",
    [
        lambda accounts: accounts.disable("ann"),
        lambda accounts: accounts.set_password("ann", "another long password"),
    ],
    ids=["disable", "set-password"],
)
def test_every_login_ends_with(
    app: Flask, parts: Parts, ann: Person, bob: Person, end: Callable[[Accounts], None]
) -> None:
    second = sign_in(app, "ann")
    end(parts.accounts)
    assert not is_signed_in(ann.browser)
    assert not is_signed_in(second.browser)
    assert is_signed_in(bob.browser), "somebody else's login ended too"


def test_enabling_an_account_again_revives_no_login(app: Flask, parts: Parts, ann: Person) -> None:
    parts.accounts.disable("ann")
    assert try_login(app.test_client(), "ann", PASSWORD).status_code == 401
    parts.accounts.enable("ann")
    assert not is_signed_in(ann.browser)
    assert is_signed_in(sign_in(app, "ann").browser)


def test_a_login_that_expired_is_dead_whatever_the_cookie_says(settings: Settings, ann: Person) -> None:
    sql(settings, "UPDATE logins SET expires_at = '2001-01-01 00:00:00.000000'")
    assert not is_signed_in(ann.browser)


def test_signing_in_sweeps_the_users_expired_logins(
    app: Flask, settings: Settings, ann: Person, bob: Person
) -> None:
    sql(settings, "UPDATE logins SET expires_at = '2001-01-01 00:00:00.000000'")
    sign_in(app, "ann")
    assert len(sql(settings, "SELECT * FROM logins")) == 2  # ann's new one, and bob's old one


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda accounts: accounts.set_password("ann", "another long password"),
        lambda accounts: (accounts.disable("ann"), accounts.enable("ann"), accounts.disable("ann")),
    ],
    ids=["set-password", "disable"],
)
def test_a_password_that_stopped_being_good_while_it_was_checked_opens_no_login(
    app: Flask,
    settings: Settings,
    parts: Parts,
    ann: Person,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Accounts], object],
) -> None:
    check = parts.accounts._matches

    def slowly(kept: str, password: str) -> bool:
        good = check(kept, password)
        meanwhile(parts.accounts)
        return good

    monkeypatch.setattr(parts.accounts, "_matches", slowly)
    assert try_login(app.test_client(), "ann", PASSWORD).status_code == 401
    assert sql(settings, "SELECT * FROM logins") == []


def test_a_wrong_pair_is_401_as_a_page_and_as_a_problem(app: Flask, ann: Person) -> None:
    page = try_login(app.test_client(), "ann", "not the password", next="/chat?q=x")
    assert page.status_code == 401
    form = Page(page.text).form("/login")
    assert (form.fields["username"], form.fields["password"], form.fields["next"]) == ("ann", "", "/chat?q=x")
    assert 'role="alert"' in page.text
    script = try_login(app.test_client(), "ann", "not the password", JSON)
    assert (script.status_code, script.mimetype) == (401, "application/problem+json")
    assert script.json["code"] == "wrong-password"


@pytest.mark.parametrize("headers", [PAGE, JSON], ids=["page", "script"])
def test_unknown_disabled_and_mistyped_cannot_be_told_apart(
    app: Flask, parts: Parts, headers: dict[str, str]
) -> None:
    parts.accounts.add("typed", PASSWORD)
    parts.accounts.add("shuts", PASSWORD)
    parts.accounts.disable("shuts")
    pairs = [("typed", "not the password"), ("ghost", PASSWORD), ("shuts", PASSWORD)]
    answers = [likeness(try_login(app.test_client(), *pair, headers), pair[0]) for pair in pairs]
    assert answers[0] == answers[1] == answers[2]


def test_an_unknown_name_costs_as_much_as_a_known_one(parts: Parts) -> None:
    accounts = Accounts(parts.db)  # with the parameters that production has
    real, decoy = accounts.hash(PASSWORD), accounts._decoy_hash
    assert extract_parameters(real) == extract_parameters(decoy)
    with pytest.raises(VerifyMismatchError):  # computed to the end, not thrown out as malformed
        PasswordHasher().verify(decoy, PASSWORD)


def test_passwords_are_kept_as_argon2id(settings: Settings, ann: Person, bob: Person) -> None:
    (first,), (second,) = sql(settings, "SELECT password_hash FROM users")
    assert first.startswith("$argon2id$")
    assert first != second, "the same password must not look the same twice"


def test_production_hashes_as_owasp_advises(parts: Parts) -> None:
    found = extract_parameters(Accounts(parts.db).hash(PASSWORD))
    assert found.memory_cost >= 19 * 1024
    assert found.time_cost >= 2


def test_a_hash_with_other_parameters_is_replaced_and_all_who_sign_in_at_once_get_in(parts: Parts) -> None:
    parts.accounts.add("old", PASSWORD)
    newer = Accounts(parts.db)
    newer._hasher = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)
    start = threading.Barrier(6)

    def sign_in(_: int) -> str:
        start.wait(10)
        with parts.binder.bound(RequestScope(request_id="r")):
            return newer.sign_in("old", PASSWORD)[0].name

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(sign_in, range(6))) == ["old"] * 6
    with parts.db.writing() as db:
        kept = db.execute(text("SELECT password_hash FROM users WHERE name = 'old'")).scalar_one()
    assert extract_parameters(kept).time_cost == 2


def test_the_cookies_token_is_nowhere_in_the_database_in_clear(
    app: Flask, settings: Settings, ann: Person
) -> None:
    kept = app.session_interface.get_signing_serializer(app)  # type: ignore[attr-defined]
    token = kept.loads(cookie_of(ann.browser))["_user_id"]
    assert len(token) >= 43
    assert token not in repr(dump(settings))


def test_the_set_up_token_is_nowhere_in_the_database_in_clear(settings: Settings, parts: Parts) -> None:
    token = parts.accounts.new_setup_token()
    assert token
    assert token not in repr(dump(settings))


def tampered(cookie: str) -> list[str]:
    payload, stamp, signature = cookie.rsplit(".", 2)
    flipped = "B" if payload[5] == "A" else "A"
    return [
        f"{payload[:5]}{flipped}{payload[6:]}.{stamp}.{signature}",
        f"{payload}.{stamp}.{signature[:-4]}AAAA",
        f"{payload}.{stamp}",
        payload,
        "",
        ".",
        "....",
        "A" * 4000,
        "\N{LATIN SMALL LETTER E WITH ACUTE}|x",
        '"\\377"',
    ]


def test_a_tampered_cookie_is_no_cookie(app: Flask, ann: Person) -> None:
    for value in tampered(cookie_of(ann.browser)):
        assert not is_signed_in(with_cookie(app, value)), value


def test_a_cookie_signed_with_another_secret_is_no_cookie(
    make_app: Callable[..., Flask], settings: Settings, ann: Person
) -> None:
    other = make_app(None, replace(settings, secret_key="another secret of 32 bytes or so"))
    assert not is_signed_in(with_cookie(other, cookie_of(ann.browser)))


def test_a_remember_me_cookie_is_never_read(app: Flask, ann: Person) -> None:
    serializer = app.session_interface.get_signing_serializer(app)  # type: ignore[attr-defined]
    token = serializer.loads(cookie_of(ann.browser))["_user_id"]
    with app.app_context():
        genuine = encode_cookie(token)
    for value in (genuine, "x", "x|y", "x|\N{LATIN SMALL LETTER E WITH ACUTE}", "|", ""):
        assert not is_signed_in(with_cookie(app, value, "remember_token")), value


def test_an_authorization_header_signs_nobody_in(client: FlaskClient) -> None:
    for value in ("Basic YW5uOnB3", "Bearer x", "\xff"):
        assert client.get("/chat", headers={**JSON, "Authorization": value}).status_code == 401


def test_the_login_cookie_is_httponly_lax_and_for_the_whole_site(app: Flask, ann: Person) -> None:
    answer = try_login(app.test_client(), "ann", PASSWORD)
    flags = flags_of(answer)
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= flags
    assert "Secure" not in flags
    assert not any(flag.startswith("Domain") for flag in flags)


def test_behind_tls_the_cookie_is_a_host_cookie_and_hsts_is_sent(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    app = make_app(None, replace(settings, https=True))
    app.extensions["agentapp"].accounts.add("ann", PASSWORD)
    browser = app.test_client()
    page = browser.get("/login", headers=PAGE, base_url="https://localhost")
    body = {"csrf_token": csrf_of(page.text), "username": "ann", "password": PASSWORD}
    answer = browser.post("/login", data=body, headers=PAGE, base_url="https://localhost")
    assert answer.status_code == 303, "a token must do: scripts send no Referer"
    set_cookie = login_cookie(answer, "__Host-agentapp")
    assert {"HttpOnly", "SameSite=Lax", "Path=/", "Secure"} <= {
        part.strip() for part in set_cookie.split(";")
    }
    assert "Domain" not in set_cookie
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
    csrf = csrf_of(browser.get("/chat", headers=PAGE, base_url="https://localhost").text)
    theme = browser.post("/theme", data={"csrf_token": csrf, "theme": "dark"}, base_url="https://localhost")
    assert "Secure" in theme.headers["Set-Cookie"]


def test_without_tls_no_hsts_is_sent(client: FlaskClient) -> None:
    assert "Strict-Transport-Security" not in client.get("/login").headers


def test_signing_in_changes_cookie_and_token(app: Flask, ann: Person) -> None:
    browser = app.test_client()
    old_csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    planted = cookie_of(browser)
    try_login(browser, "ann", PASSWORD)
    assert cookie_of(browser) != planted
    assert not is_signed_in(with_cookie(app, planted)), "a cookie planted before the login is signed in by it"
    assert browser.post("/chat", data={"csrf_token": old_csrf}, headers=JSON).status_code == 403


def test_pages_opened_at_once_after_signing_in_agree_on_one_token(app: Flask, ann: Person) -> None:
    browser = app.test_client()
    try_login(browser, "ann", PASSWORD)
    kept = cookie_of(browser)
    tokens = [csrf_of(with_cookie(app, kept).get("/chat", headers=PAGE).text) for _ in range(2)]
    for token in tokens:
        assert with_cookie(app, kept).post("/chat", data={"csrf_token": token}).status_code == 303


def test_signing_in_as_somebody_else_leaves_nothing_of_the_former(
    app: Flask, ann: Person, bob: Person
) -> None:
    answer = ann.post("/login", username="bob", password=PASSWORD)
    assert answer.status_code == 303
    page = ann.get("/chat").text
    assert 'data-user="elsewhere/bob"' in page
    assert "ann" not in page


def test_the_login_page_sends_somebody_signed_in_on(ann: Person) -> None:
    answer = ann.get("/login?next=/chat?page=2")
    assert (answer.status_code, answer.location) == (303, "/chat?page=2")


def test_next_never_leads_elsewhere(app: Flask, ann: Person) -> None:
    for target in ELSEWHERE:
        fresh, query = app.test_client(), f"/login?next={quote(target)}"
        answers = [
            ann.post("/theme", theme="dark", next=target),
            ann.get(query),
            try_login(fresh, "ann", PASSWORD, next=target),
        ]
        assert {answer.status_code for answer in answers} <= {303, 400}
        places = [answer.location for answer in answers if answer.status_code == 303]
        places.append(Page(app.test_client().get(query, headers=PAGE).text).form("/login").fields["next"])
        assert {leads_to(place) for place in places} == {"localhost"}, target
        assert not any(sep in place for place in places for sep in "\r\n")


def test_next_leads_to_any_path_of_ours(ann: Person) -> None:
    for target in HARMLESS:
        answer = ann.post("/theme", theme="dark", next=target)
        assert answer.location == target.replace("ü", "%C3%BC")
        assert leads_to(answer.location) == "localhost"


def test_the_login_page_leads_back_to_where_somebody_wanted_to_go(app: Flask, ann: Person) -> None:
    browser = app.test_client()
    wanted = "/chat?q=a%26b&page=1"
    answer = browser.get(wanted, headers=PAGE)
    assert answer.status_code == 303
    form = Page(browser.get(answer.location, headers=PAGE).text).form("/login")
    assert form.fields["next"] == wanted
    sent = browser.post(
        form.action, data={**form.fields, "username": "ann", "password": PASSWORD}, headers=PAGE
    )
    assert sent.location == wanted


def test_a_form_sent_after_the_login_ended_leads_to_the_login_page(client: FlaskClient) -> None:
    csrf = csrf_of(client.get("/login", headers=PAGE).text)
    answer = client.post("/chat", data={"csrf_token": csrf}, headers=PAGE)
    assert (answer.status_code, answer.location) == (303, "/login")


def with_probe(app: Flask) -> Flask:
    app.add_url_rule("/probe", view_func=lambda: {"from": request.remote_addr, "url": request.url})
    return app


FORWARDED = {
    "X-Forwarded-For": "6.6.6.6, 7.7.7.7",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Prefix": "/evil",
    "Forwarded": "for=6.6.6.6;host=evil.example;proto=https",
}


def test_forwarded_headers_are_not_believed_without_trusted_proxies(app: Flask) -> None:
    seen = with_probe(app).test_client().get("/probe", headers=FORWARDED).json
    assert seen == {"from": "127.0.0.1", "url": "http://localhost/probe"}


def test_with_one_trusted_proxy_only_the_last_hop_is_believed(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    app = with_probe(make_app(None, replace(settings, trusted_proxies=1)))
    seen = app.test_client().get("/probe", headers=FORWARDED).json
    assert seen == {"from": "7.7.7.7", "url": "https://evil.example/probe"}


def test_a_login_does_not_depend_on_an_address_anybody_can_send(app: Flask, ann: Person) -> None:
    for address in ("1.1.1.1", "2.2.2.2", "not an address"):
        answer = ann.browser.get("/chat", headers={**PAGE, "X-Forwarded-For": address, "User-Agent": address})
        assert answer.status_code == 200


def test_the_set_up_link_makes_an_operator_who_is_signed_in(
    client: FlaskClient, settings: Settings, parts: Parts
) -> None:
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    form = Page(client.get(link, headers=PAGE).text).form(link)
    body = {**form.fields, "username": "Opal", "password": PASSWORD}
    answer = client.post(form.action, data=body, headers=PAGE)
    assert (answer.status_code, answer.location) == (303, "/chat")
    assert is_signed_in(client)
    assert sql(settings, "SELECT name, role FROM users") == [("opal", "operator")]


def test_the_set_up_link_works_once(app: Flask, client: FlaskClient, parts: Parts) -> None:
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    other = app.test_client()
    csrf = csrf_of(other.get(link, headers=PAGE).text)
    form = Page(client.get(link, headers=PAGE).text).form(link)
    client.post(link, data={**form.fields, "username": "opal", "password": PASSWORD}, headers=PAGE)
    late = other.post(link, data={"csrf_token": csrf, "username": "mal", "password": PASSWORD}, headers=JSON)
    assert (late.status_code, late.json["code"]) == (404, "not-found")
    assert other.get(link, headers=PAGE).status_code == 404
    assert parts.accounts.new_setup_token() is None


def test_only_the_newest_set_up_links_work(client: FlaskClient, parts: Parts) -> None:
    """Two hosts that start at once each print one. Who restarts a server often leaves no number of them."""
    tokens = [parts.accounts.new_setup_token() for _ in range(MOST_SETUP_LINKS + 1)]
    statuses = [client.get(f"/setup?token={token}", headers=PAGE).status_code for token in tokens]
    assert statuses == [404] + [200] * MOST_SETUP_LINKS


def test_of_two_set_up_links_used_at_once_one_makes_an_operator_and_then_none_works(
    any_app: Flask,
) -> None:
    accounts = any_app.extensions["agentapp"].accounts
    tokens, start = [accounts.new_setup_token() for _ in range(8)], threading.Barrier(8)

    def use(number: int) -> str:
        start.wait(30)
        try:
            made, _ = accounts.set_up(tokens[number], f"user{number}", PASSWORD)
        except NotFound:
            return "not found"
        return str(made.role)

    binder = any_app.extensions["agentapp"].binder
    jobs = [binder.carried(RequestScope(request_id=f"r{n}"), partial(use, n)) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = sorted(job.result() for job in [pool.submit(job) for job in jobs])
    assert found == ["not found"] * 7 + ["operator"]
    with binder.bound(RequestScope(request_id="r")):
        assert not any(accounts.knows_setup_token(token) for token in tokens)
        assert len(accounts.all()) == 1


def test_a_made_up_set_up_link_is_absent(client: FlaskClient, parts: Parts) -> None:
    parts.accounts.new_setup_token()
    for query in ("", "?token=", "?token=x", "?token=%00", f"?token={'A' * 5000}", "?token=a&token=b"):
        assert client.get(f"/setup{query}", headers=PAGE).status_code == 404


def test_the_set_up_link_dies_with_the_first_account_however_that_was_made(
    client: FlaskClient, settings: Settings, parts: Parts
) -> None:
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    csrf = csrf_of(client.get(link, headers=PAGE).text)
    parts.accounts.add("opal", PASSWORD)
    assert client.get(link, headers=PAGE).status_code == 404
    for name in ("mal", "opal"):
        body = {"csrf_token": csrf, "username": name, "password": PASSWORD}
        assert client.post(link, data=body, headers=JSON).status_code == 404
    assert sql(settings, "SELECT name, role FROM users") == [("opal", "member")]


def test_a_refused_set_up_keeps_the_link_and_the_name(client: FlaskClient, parts: Parts) -> None:
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    form = Page(client.get(link, headers=PAGE).text).form(link)
    bad = [("opal", "short"), ("no spaces", PASSWORD), ("", PASSWORD), ("o" * 65, PASSWORD)]
    for name, password in bad:
        answer = client.post(link, data={**form.fields, "username": name, "password": password}, headers=PAGE)
        assert answer.status_code == 400
        assert Page(answer.text).form(link).fields["username"] == name
        assert password not in answer.text
        assert client.get(link, headers=PAGE).status_code == 200


def test_of_eight_who_use_the_set_up_link_at_once_one_becomes_operator(
    app: Flask, settings: Settings, parts: Parts
) -> None:
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    start = threading.Barrier(8)

    def use(number: int) -> int:
        browser = app.test_client()
        csrf = csrf_of(browser.get(link, headers=PAGE).text)
        body = {"csrf_token": csrf, "username": f"user{number}", "password": PASSWORD}
        start.wait(30)
        return browser.post(link, data=body, headers=JSON).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(use, range(8)))
    assert statuses == [303] + [404] * 7
    assert [role for (role,) in sql(settings, "SELECT role FROM users")] == ["operator"]
    assert len(sql(settings, "SELECT * FROM logins")) == 1


def test_the_theme_is_kept_in_a_cookie_and_shown(ann: Person) -> None:
    for theme in ("dark", "light", "system"):
        answer = ann.post("/theme", theme=theme, next="/chat?page=1")
        assert (answer.status_code, answer.location) == (303, "/chat?page=1")
        assert {"HttpOnly", "SameSite=Lax"} <= flags_of(answer)
        assert f'data-theme="{theme}"' in ann.get("/chat").text


def test_a_theme_that_there_is_not_is_refused_and_never_shown(app: Flask, ann: Person) -> None:
    answer = ann.post("/theme", JSON, theme='"><script>')
    assert (answer.status_code, answer.json["code"]) == (400, "bad-request")
    assert 'data-theme="system"' in with_cookie(app, '"><script>', "theme").get("/login", headers=PAGE).text


def test_names_are_the_same_however_they_are_written(app: Flask, ann: Person) -> None:
    for name in ("ANN", " ann ", "Ann"):
        assert try_login(app.test_client(), name, PASSWORD).status_code == 303
    with pytest.raises(Exception, match="already"):
        person(app, "ANN")


def test_a_very_long_password_is_wrong_without_being_hashed(
    app: Flask, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Any] = []
    monkeypatch.setattr(PasswordHasher, "verify", lambda *given: hashed.append(given))
    assert try_login(app.test_client(), "ann", "x" * 4096).status_code == 401
    assert try_login(app.test_client(), "ann", "x" * 4097).status_code == 400
    assert hashed == []


def test_the_server_knows_whose_cookie_it_is_and_believes_no_other(app: Flask, ann: Person) -> None:
    user_of = app.extensions["agentapp.user_of"]
    mine = f"agentapp={cookie_of(ann.browser)}"
    parts: Parts = app.extensions["agentapp"]
    with parts.binder.bound(RequestScope(request_id="a" * 16)):
        (me,) = parts.accounts.all()
    assert user_of(f"theme=dark; {mine}") == me.id
    stranger = app.test_client()
    stranger.get("/login")
    for cookies in (
        f"agentapp={cookie_of(stranger)}",
        mine[:-3] + "AAA",
        "agentapp=",
        "",
        "theme=dark",
        "\0",
    ):
        assert user_of(cookies) is None, cookies


def test_a_cookie_of_an_ended_login_takes_nothing_of_its_owners_share(app: Flask, ann: Person) -> None:
    """The server asks whose cookie it is before anybody looks into the database."""
    user_of = app.extensions["agentapp.user_of"]
    kept = cookie_of(ann.browser)
    owner = user_of(f"agentapp={kept}")
    assert owner is not None
    ann.post("/logout")
    assert with_cookie(app, kept).get("/chat", headers=JSON).status_code == 401
    assert user_of(f"agentapp={kept}") is None
    assert user_of(f"agentapp={cookie_of(sign_in(app, 'ann').browser)}") == owner
