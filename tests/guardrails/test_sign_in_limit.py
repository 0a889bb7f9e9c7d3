"""Failed attempts to sign in: counted by name and address, in all workers, before a password is checked."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from argon2 import PasswordHasher
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.guardrails import sign_in
from agentapp.guardrails.sign_in import network_of
from agentapp.storage.engines import make_engine
from tests.support.app_inspection import Page, dump, likeness
from tests.support.users import JSON, PAGE, PASSWORD, csrf_of

LIMIT, WINDOW = 3, 900.0
HOME, AWAY = "192.0.2.1", "192.0.2.2"
WRONG = "not the password"
COOKIE = "agentapp-browser"


@dataclass
class Door:
    """An app with a clock that the test sets. Every check of a password is counted."""

    app: Flask
    now: float = 1_800_000_000.0
    checked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts.turns.kit.guardrails.clock = lambda: self.now
        accounts, check = self.parts.accounts, self.parts.accounts._matches

        def matches(kept: str, password: str) -> bool:
            self.checked.append(password)
            return check(kept, password)

        accounts._matches = matches  # type: ignore[method-assign]

    @property
    def parts(self) -> Any:
        return self.app.extensions["agentapp"]

    def try_(
        self,
        name: str,
        password: str = WRONG,
        address: str = HOME,
        headers: dict[str, str] = JSON,
        browser: FlaskClient | None = None,
    ) -> TestResponse:
        return self.prepared(name, password, address, headers, browser)()

    def prepared(
        self,
        name: str,
        password: str = WRONG,
        address: str = HOME,
        headers: dict[str, str] = JSON,
        browser: FlaskClient | None = None,
    ) -> Callable[[], TestResponse]:
        """Everything up to the try itself."""
        browser, at = browser or self.app.test_client(), {"REMOTE_ADDR": address}
        page = browser.get("/login", headers=PAGE, environ_overrides=at, follow_redirects=True)
        csrf = csrf_of(page.text)
        body = {"csrf_token": csrf, "username": name, "password": password, "next": "/chat?q=x"}
        return lambda: browser.post("/login", data=body, headers=headers, environ_overrides=at)

    def statuses(self, *names: str, **more: Any) -> list[int]:
        return [self.try_(name, **more).status_code for name in names]

    def at_once(self, tries: list[Callable[[], TestResponse]]) -> list[int]:
        start = threading.Barrier(len(tries))

        def go(one: Callable[[], TestResponse]) -> int:
            start.wait(30)
            return one().status_code

        with ThreadPoolExecutor(len(tries)) as pool:
            return sorted(pool.map(go, tries))


@pytest.fixture
def make_door(settings: Settings, make_app: Callable[..., Flask]) -> Callable[..., Door]:
    def make(**changed: Any) -> Door:
        return Door(make_app(None, replace(settings, **{"rate_login": (LIMIT, WINDOW), **changed})))

    return make


@pytest.fixture
def door(make_door: Callable[..., Door]) -> Door:
    made = make_door()
    made.parts.accounts.add("ann", PASSWORD)
    made.parts.accounts.add("bob", PASSWORD)
    return made


def cells(database_url: str) -> list[tuple[str, str]]:
    engine = make_engine(database_url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT scope, id FROM guardrail_cells ORDER BY scope, id"))
        rows = [(scope, id) for scope, id in found]
    engine.dispose()
    return rows


def test_a_name_has_so_many_failed_tries_and_then_no_password_is_looked_at(door: Door) -> None:
    assert door.statuses(*["ann"] * (LIMIT + 2)) == [401] * LIMIT + [429] * 2
    assert len(door.checked) == LIMIT


def test_the_right_password_is_refused_too_while_the_name_is_locked(door: Door) -> None:
    door.statuses(*["ann"] * LIMIT)
    assert door.try_("ann", PASSWORD).status_code == 429
    assert PASSWORD not in door.checked
    assert door.try_("ann", PASSWORD, AWAY).status_code == 429


def test_a_name_is_counted_as_accounts_read_it(door: Door) -> None:
    assert door.statuses("ann", " ANN ", "Ann", "aNN") == [401] * LIMIT + [429]


def test_somebody_else_at_the_same_address_still_gets_in(door: Door) -> None:
    door.statuses(*["ann"] * (LIMIT + 1))
    assert door.try_("bob", PASSWORD).status_code == 303


def test_an_address_has_five_times_as_many_failed_tries(door: Door) -> None:
    names = [f"ghost{n // LIMIT}" for n in range(5 * LIMIT)]
    assert set(door.statuses(*names)) == {401}
    assert door.try_("bob", PASSWORD).status_code == 429
    assert door.try_("bob", PASSWORD, AWAY).status_code == 303
    assert len(door.checked) == 5 * LIMIT + 1


def test_the_forwarded_address_counts_behind_a_trusted_proxy_and_only_there(
    make_door: Callable[..., Door],
) -> None:
    def tries(door: Door) -> list[int]:
        names = [f"ghost{n}" for n in range(5 * LIMIT + 1)]
        each = [door.prepared(name) for name in names]
        for number, name in enumerate(names):
            headers = {**JSON, "X-Forwarded-For": f"198.51.100.{number}"}
            each[number] = door.prepared(name, headers=headers)
        return [one().status_code for one in each]

    assert tries(make_door())[-1] == 429, "anybody can write that header"
    assert tries(make_door(trusted_proxies=1))[-1] == 401


def test_refused_tries_are_not_counted_against_the_address(door: Door) -> None:
    door.statuses(*["ann"] * (6 * LIMIT))
    assert door.try_("bob", WRONG).status_code == 401


def test_an_unknown_name_is_locked_like_a_known_one(door: Door) -> None:
    door.parts.accounts.add("typed", PASSWORD)
    for headers in (JSON, PAGE):
        last = []
        for name in ("typed", "ghost"):
            door.statuses(*[name] * LIMIT)
            last.append(likeness(door.try_(name, headers=headers), name))
        assert last[0] == last[1]
        assert last[0][0] == 429
        door.now += 2 * WINDOW


def test_the_window_slides(door: Door) -> None:
    assert door.statuses("ann", "ann") == [401] * 2
    door.now += WINDOW / 2
    assert door.statuses("ann", "ann") == [401, 429]
    door.now += WINDOW / 2 + WINDOW / 60
    assert door.statuses("ann", "ann", "ann") == [401, 401, 429]
    door.now += WINDOW * 2
    assert door.try_("ann", PASSWORD).status_code == 303


def test_a_person_who_waits_as_long_as_the_refusal_says_gets_in(door: Door) -> None:
    door.statuses(*["ann"] * LIMIT)
    wait = int(door.try_("ann", PASSWORD).headers["Retry-After"])
    assert WINDOW <= wait <= WINDOW * 61 / 60 + 1
    door.now += wait
    assert door.try_("ann", PASSWORD).status_code == 303


def test_a_success_counts_as_nothing_and_clears_nothing(door: Door) -> None:
    assert set(door.statuses(*["ann"] * 4 * LIMIT, password=PASSWORD)) == {303}
    assert door.statuses("ann", "ann") == [401] * 2
    assert door.try_("ann", PASSWORD).status_code == 303
    assert door.statuses("ann", "ann") == [401, 429]


def test_right_passwords_of_a_name_are_limited_too_and_then_none_is_looked_at(door: Door) -> None:
    most = sign_in.ATTEMPTS_PER_FAILURE * LIMIT
    assert door.statuses(*["ann"] * (most + 2), password=PASSWORD) == [303] * most + [429] * 2
    assert len(door.checked) == most
    assert int(door.try_("ann", PASSWORD, AWAY).headers["Retry-After"]) >= WINDOW
    assert door.try_("bob", PASSWORD).status_code == 303
    door.now += WINDOW * 2
    assert door.try_("ann", PASSWORD).status_code == 303


def test_a_script_may_sign_in_sixty_times_in_a_quarter_of_an_hour(settings: Settings) -> None:
    count, seconds = settings.rate_login or (0, 0)
    assert (count * sign_in.ATTEMPTS_PER_FAILURE, seconds) == (60, 900)


def test_of_many_right_tries_at_once_only_so_many_are_checked_in_all_workers_together(
    database_url: str, make_door: Callable[..., Door]
) -> None:
    doors = [make_door(database_url=database_url, rate_login=(2, WINDOW)) for _ in range(2)]
    doors[0].parts.accounts.add("ann", PASSWORD)
    tries = [door.prepared("ann", PASSWORD, f"192.0.2.{n}") for n in range(10) for door in doors]
    assert doors[0].at_once(tries) == [303] * 12 + [429] * 8
    assert len(doors[0].checked) + len(doors[1].checked) == 12


def test_a_refused_try_writes_nothing_and_waits_for_nobody(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.statuses(*["ann"] * LIMIT)
    refused = door.prepared("ann")

    def never(*given: Any) -> Any:
        raise AssertionError("a refused try must stay cheap")

    monkeypatch.setattr(door.parts.sign_ins._store, "transaction", never)
    monkeypatch.setattr(door.parts.sign_ins, "_few_at_once", never)
    assert refused().status_code == 429


def known(door: Door, name: str, password: str = PASSWORD) -> FlaskClient:
    """A browser that has signed in with this name before, and has signed out again."""
    browser = door.app.test_client()
    assert door.try_(name, password, browser=browser).status_code == 303
    csrf = csrf_of(browser.get("/chat", headers=PAGE).text)
    assert browser.post("/logout", data={"csrf_token": csrf}).status_code == 303
    return browser


def cookie_of(browser: FlaskClient) -> str:
    found = browser.get_cookie(COOKIE)
    assert found is not None
    return found.value


def with_cookie(door: Door, value: str) -> FlaskClient:
    browser = door.app.test_client()
    browser.set_cookie(COOKIE, value)
    return browser


def test_the_wrong_guesses_of_others_do_not_lock_out_a_browser_that_was_here_before(door: Door) -> None:
    mine = known(door, "ann")
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    assert door.try_("ann", PASSWORD).status_code == 429, "a browser that was never here"
    assert door.try_("ann", PASSWORD, browser=mine).status_code == 303


def test_a_stolen_cookie_gives_no_more_guesses_than_a_name_has(door: Door) -> None:
    mine, other = known(door, "ann"), known(door, "ann")
    thieves = [with_cookie(door, cookie_of(mine)) for _ in range(LIMIT + 2)]
    found = [door.try_("ann", browser=thief, address=AWAY).status_code for thief in thieves]
    assert found == [401] * LIMIT + [429] * 2
    assert door.try_("ann", PASSWORD, browser=mine).status_code == 429, "it is the same browser to us"
    assert door.try_("ann", PASSWORD, browser=other).status_code == 303
    assert door.statuses(*["ann"] * (LIMIT + 1)) == [401] * LIMIT + [429], "the name has its own"


def test_who_signs_in_again_stays_the_same_browser_and_gets_no_more_guesses(door: Door) -> None:
    mine = known(door, "ann")
    door.try_("ann", browser=mine)
    assert door.try_("ann", PASSWORD, browser=mine).status_code == 303
    found = [door.try_("ann", browser=mine).status_code for _ in range(LIMIT)]
    assert found == [401] * (LIMIT - 1) + [429]


def test_the_cookie_helps_with_its_own_name_only(door: Door) -> None:
    bobs = known(door, "bob")
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    assert door.try_("ann", PASSWORD, browser=bobs).status_code == 429
    door.statuses(*["ghost"] * LIMIT, address=AWAY)
    assert door.try_("ghost", PASSWORD, browser=bobs).status_code == 429


def test_the_address_counts_for_a_known_browser_too(door: Door) -> None:
    mine = known(door, "ann")
    door.statuses(*[f"ghost{n // LIMIT}" for n in range(5 * LIMIT)])
    assert door.try_("ann", PASSWORD, browser=mine).status_code == 429
    assert door.try_("ann", PASSWORD, AWAY, browser=mine).status_code == 303


def test_a_forged_or_changed_cookie_is_none(door: Door, make_door: Callable[..., Door]) -> None:
    genuine = cookie_of(known(door, "ann"))
    elsewhere = make_door(secret_key="another secret of 32 bytes or so")
    stranger = cookie_of(known(elsewhere, "ann"))
    payload, stamp, signature = genuine.split(".")
    session = door.app.session_interface.get_signing_serializer(door.app)  # type: ignore[attr-defined]
    forged = ["", ".", "x", "A" * 4000, f"{payload}.{stamp}", f"{payload}.{stamp}.{signature[::-1]}"]
    forged += [f"{payload[:-4]}AAAA.{stamp}.{signature}", stranger, session.dumps(["ann", "nonce"])]
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    for value in forged:
        answer = door.try_("ann", PASSWORD, browser=with_cookie(door, value))
        assert answer.status_code == 429, value
    assert door.try_("ann", PASSWORD, browser=with_cookie(door, genuine)).status_code == 303


def test_a_new_password_and_a_disabled_account_void_the_cookie(door: Door) -> None:
    mine, new = known(door, "ann"), "another long password"
    door.parts.accounts.set_password("ann", new)
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    assert door.try_("ann", new, browser=mine).status_code == 429
    bobs = known(door, "bob")
    door.parts.accounts.disable("bob")
    door.statuses(*["bob"] * LIMIT, address=AWAY)
    assert door.try_("bob", PASSWORD, browser=bobs).status_code == 429


def test_a_browser_stays_known_when_its_users_hash_is_replaced(door: Door) -> None:
    """As it is after an upgrade that hashes with other parameters."""
    door.parts.accounts._hasher = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)
    mine = known(door, "ann")
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    assert door.try_("ann", PASSWORD, browser=mine).status_code == 303


def test_the_cookie_lasts_a_year_and_names_nobody(
    settings: Settings, door: Door, make_door: Callable[..., Door]
) -> None:
    mine = known(door, "ann")
    found = mine.get_cookie(COOKIE)
    assert found is not None
    assert (found.http_only, found.same_site, found.secure, found.max_age) == (
        True,
        "Strict",
        False,
        31_536_000,
    )
    payload = base64.urlsafe_b64decode(found.value.split(".")[0] + "==")
    owner, nonce = json.loads(payload)
    assert owner in repr(dump(settings)["users"])
    assert len(nonce) >= 22
    assert b"ann" not in payload
    behind_tls = make_door(https=True)
    answer = behind_tls.try_("ann", PASSWORD)
    (cookie,) = [each for each in answer.headers.getlist("Set-Cookie") if "-browser=" in each]
    assert cookie.startswith("__Host-agentapp-browser=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    assert "Domain" not in cookie


def test_the_first_account_has_a_known_browser_too(make_door: Callable[..., Door]) -> None:
    door = make_door()
    token, browser = door.parts.accounts.new_setup_token(), door.app.test_client()
    csrf = csrf_of(browser.get(f"/setup?token={token}", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": "ann", "password": PASSWORD}
    assert browser.post(f"/setup?token={token}", data=body, headers=PAGE).status_code == 303
    door.statuses(*["ann"] * LIMIT, address=AWAY)
    assert door.try_("ann", PASSWORD, browser=browser).status_code == 303


def test_of_many_wrong_tries_at_once_exactly_the_limit_is_checked(
    database_url: str, make_door: Callable[..., Door]
) -> None:
    door = make_door(database_url=database_url, rate_login=(10, WINDOW))
    door.parts.accounts.add("ann", PASSWORD)
    tries = [door.prepared("ann", address=f"192.0.2.{n % 4}") for n in range(20)]
    assert door.at_once(tries) == [401] * 10 + [429] * 10
    assert len(door.checked) == 10


def test_of_many_names_at_once_from_one_address_exactly_its_limit_is_checked(
    database_url: str, make_door: Callable[..., Door]
) -> None:
    door = make_door(database_url=database_url, rate_login=(2, WINDOW))
    assert door.at_once([door.prepared(f"ghost{n}") for n in range(20)]) == [401] * 10 + [429] * 10
    assert len(door.checked) == 10


def test_however_many_come_at_once_with_the_right_password_all_get_in(
    database_url: str, make_door: Callable[..., Door]
) -> None:
    """Many right passwords at once, of one name and of many names: an office that starts at nine."""
    door = make_door(database_url=database_url, rate_login=(3, WINDOW))
    names = [f"user{n}" for n in range(16)]
    for name in names:
        door.parts.accounts.add(name, PASSWORD)
    tries = [door.prepared(name, PASSWORD) for name in [*names, *["user0"] * 5]]
    assert door.at_once(tries) == [303] * len(tries)
    assert door.try_("user0").status_code == 401


def test_two_servers_on_one_database_share_the_count(
    database_url: str, make_door: Callable[..., Door]
) -> None:
    one, two = (make_door(database_url=database_url) for _ in range(2))
    found = [door.try_("ann").status_code for _ in range(2) for door in (one, two)]
    assert found == [401] * LIMIT + [429]
    assert one.try_("ann").status_code == 429


def test_a_restart_forgets_nothing(make_door: Callable[..., Door]) -> None:
    assert make_door().statuses(*["ann"] * LIMIT) == [401] * LIMIT
    assert make_door().try_("ann").status_code == 429


def test_switched_off_nothing_is_counted_and_nothing_written(
    settings: Settings, make_door: Callable[..., Door]
) -> None:
    door = make_door(rate_login=None)
    assert set(door.statuses(*["ann"] * 30)) == {401}
    assert cells(settings.database_url) == []


def test_nothing_that_was_typed_is_kept_in_clear_or_logged(
    settings: Settings, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    long = "hunter2" * 30
    assert door.statuses(*["secret-name"] * (LIMIT + 1), long)[-2:] == [429, 401]
    for place in (repr(dump(settings)["guardrail_cells"]), caplog.text):
        assert not re.search(r"secret-name|hunter2|not the password|192\.0\.2", place)
    assert {len(id) for _, id in cells(settings.database_url)} == {64}


def test_the_login_page_comes_back_with_the_reason_and_the_name(door: Door) -> None:
    door.statuses(*["ann"] * LIMIT)
    answer = door.try_("ann", headers=PAGE)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= WINDOW * 61 / 60 + 1
    alert = re.search(r'<p[^>]*role="alert"[^>]*>.*?<span>(.*?)</span>', answer.text)
    assert alert
    assert re.fullmatch(
        r"There were too many tries to sign in with this name or from this address\."
        r" Try again in 1[45]:\d\d\.",
        alert[1],
    )
    form = Page(answer.text).form("/login")
    assert (form.fields["username"], form.fields["password"], form.fields["next"]) == ("ann", "", "/chat?q=x")


def test_a_script_is_told_the_same_for_a_name_and_for_an_address(door: Door) -> None:
    door.statuses(*["ann"] * LIMIT)
    answer = door.try_("ann")
    assert (answer.status_code, answer.mimetype) == (429, "application/problem+json")
    body = answer.json
    assert (body["code"], body["scope"], body["limit"], body["used"]) == (
        "rate-limited",
        "login",
        LIMIT,
        LIMIT,
    )
    assert body["retry_after"] == int(answer.headers["Retry-After"])
    door.statuses(*[f"ghost{n}" for n in range(4 * LIMIT)])
    other = door.try_("bob").json
    assert (other["scope"], other["detail"]) == ("login", body["detail"])


def test_with_the_database_away_nobody_is_let_in(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the store fails before the check, or after it, when the failure can no longer be counted."""

    def away(*given: Any) -> Any:
        raise StorageUnavailable("The database cannot be reached right now.")

    right, wrong = door.prepared("ann", PASSWORD), door.prepared("ann")
    with monkeypatch.context() as patch:
        patch.setattr(door.parts.sign_ins, "_leave", away)
        assert wrong().status_code == 503
    monkeypatch.setattr(door.parts.sign_ins._store, "transaction", away)
    answer = right()
    assert (answer.status_code, answer.json["code"]) == (503, "storage-unavailable")
    assert len(door.checked) == 1


def test_a_try_that_came_to_no_end_keeps_its_place_for_two_minutes_at_most(door: Door) -> None:
    """As if its worker was killed: the attempt enters and never leaves."""
    stuck = door.parts.sign_ins
    keys = [
        sign_in.Key(sign_in.NAME, sign_in._digest("ann")),
        sign_in.Key(sign_in.ADDRESS, sign_in._digest(HOME)),
        sign_in.Key(sign_in.ATTEMPTS, sign_in._digest("ann")),
    ]
    for _ in range(LIMIT):
        stuck._enter(keys)
    answer = door.try_("ann", PASSWORD)
    assert (answer.status_code, answer.json["code"], answer.json["scope"]) == (503, "busy", "login")
    assert door.try_("bob", PASSWORD).status_code == 303
    door.now += 120 * 17 / 16
    assert door.try_("ann", PASSWORD).status_code == 303


def test_an_error_that_is_no_wrong_password_is_no_failed_try(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(door.parts.accounts, "sign_in", broken)
        assert door.statuses(*["ann"] * 2 * LIMIT) == [500] * 2 * LIMIT
    assert door.try_("ann", PASSWORD).status_code == 303


def test_cells_that_can_no_longer_count_are_removed_and_only_those(
    database_url: str, make_door: Callable[..., Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "SWEEP_EVERY", 1)
    door = make_door(database_url=database_url)
    door.now = time.time()  # the rows are dated by the database's clock
    door.statuses("ghost", address=AWAY)
    before = cells(database_url)
    engine = make_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE guardrail_cells SET updated_at = updated_at - 1790"))
    door.statuses("ann")
    assert set(before) < set(cells(database_url)), "they may still count"
    with engine.begin() as connection:
        connection.execute(text("UPDATE guardrail_cells SET updated_at = updated_at - 20"))
        old = text("INSERT INTO guardrail_cells VALUES ('user', 'u', '{}', '', 0)")
        connection.execute(old)
    engine.dispose()
    door.statuses("ann")
    assert not set(before) & set(cells(database_url))
    assert [scope for scope, _ in cells(database_url)] == [
        "login-address",
        "login-attempts",
        "login-name",
        "user",
    ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:0DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network
