"""Failed attempts to sign in: counted by name and address, in all workers, before a password is checked."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.guardrails import sign_in
from agentapp.guardrails.sign_in import network_of
from agentapp.storage.db import make_engine
from tests.support.app_inspection import Page, dump, likeness
from tests.support.users import JSON, PAGE, PASSWORD, csrf_of

LIMIT, WINDOW = 3, 900.0
HOME, AWAY = "192.0.2.1", "192.0.2.2"
WRONG = "not the password"


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
        self, name: str, password: str = WRONG, address: str = HOME, headers: dict[str, str] = JSON
    ) -> TestResponse:
        return self.prepared(name, password, address, headers)()

    def prepared(
        self, name: str, password: str = WRONG, address: str = HOME, headers: dict[str, str] = JSON
    ) -> Callable[[], TestResponse]:
        """Everything up to the try itself."""
        browser, at = self.app.test_client(), {"REMOTE_ADDR": address}
        csrf = csrf_of(browser.get("/login", headers=PAGE, environ_overrides=at).text)
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
        r"There were too many tries to sign in with a wrong name or password\. Try again in 1[45]:\d\d\.",
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
    assert [scope for scope, _ in cells(database_url)] == ["login-address", "login-name", "user"]


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
