"""Names that look like somebody else's cannot be made, and passwords that everybody tries cannot be set."""

from __future__ import annotations

import random
import string
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from zxcvbn import matching

from agentapp.config import Settings
from agentapp.errors import BadRequest
from agentapp.isolation import RequestScope
from agentapp.storage.accounts import Accounts
from agentapp.storage.engines import make_engine
from agentapp.storage.names import check_new_name, lengths_of_lookalikes
from agentapp.storage.passwords import check_password
from agentapp.web.parts import Parts
from tests.support.users import JSON, PAGE, PASSWORD, csrf_of, sign_in

CYRILLIC_A = "\N{CYRILLIC SMALL LETTER A}"
ALL_CYRILLIC_COP = "\N{CYRILLIC SMALL LETTER ES}\N{CYRILLIC SMALL LETTER O}\N{CYRILLIC SMALL LETTER ER}"
WELL_KNOWN = """
    00000000 11111111 111111111 88888888 aaaaaaaa 12121212 12341234 123123123 1122334455 87654321 987654321
    789456123 102030405060 abcdefgh abcd1234 1q2w3e4r zaq12wsx 1qaz2wsx asdfghjkl asdfasdf qwerty123 zxcvbnm1
    password12 passw0rd p@ssword P@ssw0rd administrator admin123 changeme welcome123
    letmein1 test1234 testtest secret123 michelle jennifer linkedin google123 iloveyou1 trustno1 dragon123
"""
ORDINARY = [
    "correct horse battery",
    "correct horse",
    "tr0ub4dor&3x",
    "walnut-78-boat",
    "blue-horse-17",
    PASSWORD,
]
ORDINARY += ["longpassword", "user-1-password", "letmein-to-ops"]
ORDINARY += ["kaffee und kuchen", "my cat is grey", "xkzqwpvb", "пароль для анны", "我的密码很长很长"]
GOOD = ["ann", "o'neill".replace("'", "."), "user-10", "müller", "łukasz", "иван", "мария", "γιώργος", "李雷"]
GOOD += [
    "山田taro",
    "たろう",
    "カタカナー",
    "김철수",
    "עדי",
    "a@example.org",
    "иван7",
    "नमन"[:1],
    "二〇二六taro",
]
# With digits of the alphabet's own.
GOOD += ["\u0639\u0644\u064a\u0661", "\u0639\u0644\u06cc\u06f5", "\u0639\u0644\u064a7", "न१", "ก๑"]


@pytest.fixture
def accounts(parts: Parts) -> Accounts:
    return parts.accounts


@pytest.mark.parametrize("name", GOOD)
def test_names_of_one_alphabet_are_fine(accounts: Accounts, name: str) -> None:
    assert accounts.add(name, PASSWORD).name == name.casefold()


@pytest.mark.parametrize(
    "name",
    [
        f"{CYRILLIC_A}dmin",
        "adm\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}n",
        "pay\N{GREEK SMALL LETTER RHO}al",
        "иvан",
        f"ann@{CYRILLIC_A}",
        "paypa\N{ARABIC-INDIC DIGIT ONE}",
        "b\N{ARABIC-INDIC DIGIT FIVE}b",
        "b\N{EXTENDED ARABIC-INDIC DIGIT FIVE}b",
        "b\N{DEVANAGARI DIGIT ZERO}b",
        "иван\N{BENGALI DIGIT FOUR}",
    ],
)
def test_alphabets_are_not_mixed(accounts: Accounts, name: str) -> None:
    with pytest.raises(BadRequest, match="one alphabet"):
        accounts.add(name, PASSWORD)
    with pytest.raises(BadRequest, match="one alphabet"):
        accounts.add("ann", PASSWORD, tenant=name)
    assert accounts.add("ann", PASSWORD).name == "ann", "nothing of it was kept"


def test_letters_of_a_special_form_are_refused(accounts: Accounts) -> None:
    accounts.add("admin", PASSWORD)
    for name in ("\uff41dmin", "\N{MATHEMATICAL BOLD SMALL A}dmin", "admin\N{SUPERSCRIPT TWO}"):
        with pytest.raises(BadRequest, match="special form"):
            accounts.add(name, PASSWORD)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cop", ALL_CYRILLIC_COP),
        (ALL_CYRILLIC_COP, "cop"),
        ("admin", "adm\N{LATIN SMALL LETTER DOTLESS I}n"),
        ("paypal", "paypa1"),
        ("bob", "b0b"),
        ("\N{GREEK SMALL LETTER OMICRON}", "\N{CYRILLIC SMALL LETTER O}"),
        ("oo", "\N{HEBREW LETTER SAMEKH}" * 2),
        ("100", "\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT FIVE}\N{ARABIC LETTER HEH}"),
        ("modern", "modem"),
        ("modem", "modern"),
        ("mary", "rnary"),
        ("walter", "vvalter"),
        ("vvalter", "walter"),
        ("tommy.wu", "tornrny.vvu"),
        ("vwv", "wvv"),
        ("vvvv", "ww"),
        ("m0m", "rnorn"),
        ("vvw", "\N{CYRILLIC SMALL LETTER WE}" * 2),
    ],
)
def test_a_name_that_looks_like_an_existing_one_is_refused(
    accounts: Accounts, first: str, second: str
) -> None:
    accounts.add(first, PASSWORD, tenant=first)
    with pytest.raises(BadRequest, match=r"There is already a user whose name looks the same"):
        accounts.add(second, PASSWORD, tenant=first)
    with pytest.raises(BadRequest, match=r"There is already a tenant whose name looks the same"):
        accounts.add("somebody", PASSWORD, tenant=second)
    with pytest.raises(BadRequest, match="There is already a user"):
        accounts.add(first, PASSWORD)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("clara", "dara"),
        ("anna", "arina"),
        ("maria", "marina"),
        ("ann", "arn"),
        ("vera", "wera"),
        ("ali", "all"),
    ],
)
def test_names_that_are_only_similar_are_fine(accounts: Accounts, first: str, second: str) -> None:
    accounts.add(first, PASSWORD)
    accounts.add(second, PASSWORD)


def test_only_names_of_a_possible_length_are_compared() -> None:
    """A table of 100,000 users is not read whole."""
    assert lengths_of_lookalikes("anna") == (4, 4)
    assert lengths_of_lookalikes("modem") == (5, 7)
    assert lengths_of_lookalikes("modern") == (5, 7)
    assert lengths_of_lookalikes("vvv") == (2, 3)


@given(st.text("mnrvwo0", min_size=1, max_size=12), st.randoms())
def test_no_other_length_can_look_the_same(name: str, chance: random.Random) -> None:
    other = name
    for short, long in (("m", "rn"), ("w", "vv"), ("o", "0")) * 3:
        was, becomes = chance.choice([(short, long), (long, short)])
        other = other.replace(was, becomes, chance.randint(0, 3))
    if other != name:
        with pytest.raises(BadRequest, match="looks the same"):
            check_new_name(name, "user", [other])
    shortest, longest = lengths_of_lookalikes(name)
    assert shortest <= len(other) <= longest


def test_of_two_names_that_look_the_same_and_come_at_once_one_is_made(
    database_url: str, settings: Settings, make_app: Callable[..., Flask]
) -> None:
    parts = make_app(None, replace(settings, database_url=database_url)).extensions["agentapp"]
    pairs = [(f"x{n}o", f"x{n}0") for n in range(2, 8)]
    start = threading.Barrier(2)

    def add(name: str) -> bool:
        start.wait(30)
        with parts.binder.bound(RequestScope(request_id=name)):
            try:
                parts.accounts.add(name, PASSWORD)
            except BadRequest:
                return False
            return True

    with ThreadPoolExecutor(2) as pool:
        for pair in pairs:
            assert sorted(pool.map(add, pair)) == [False, True], pair


def test_names_from_before_stay_valid(app: Flask, settings: Settings, parts: Parts) -> None:
    parts.accounts.add("ann", PASSWORD, tenant="acme")
    engine = make_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE users SET name = :name"), {"name": f"{CYRILLIC_A}nn"})
        connection.execute(text("UPDATE tenants SET name = :name"), {"name": f"{CYRILLIC_A}cme"})
    engine.dispose()
    assert sign_in(app, f"{CYRILLIC_A}nn").get("/chat").status_code == 200
    parts.accounts.set_password(f"{CYRILLIC_A}nn", "another long password")
    assert parts.accounts.add("bob", PASSWORD, tenant=f"{CYRILLIC_A}cme").name == "bob"


@pytest.mark.parametrize("password", ["password", "PassWord1", "12345678", "p@ssword", " iloveyou "])
def test_a_common_password_cannot_be_set(accounts: Accounts, password: str) -> None:
    accounts.add("ann", PASSWORD)
    with pytest.raises(BadRequest, match="easy to guess"):
        accounts.add("bob", password)
    with pytest.raises(BadRequest, match="easy to guess"):
        accounts.set_password("ann", password)


def test_no_well_known_password_is_good_enough() -> None:
    for password in WELL_KNOWN.split():
        with pytest.raises(BadRequest, match="easy to guess"):
            check_password(password, "someone")


@pytest.mark.parametrize("password", [" " * 8, "\N{IDEOGRAPHIC SPACE}" * 8, "\t \n" * 4])
def test_nor_are_spaces(password: str) -> None:
    with pytest.raises(BadRequest, match="spaces only"):
        check_password(password, "someone")


@pytest.mark.parametrize("password", ["annannann", "htims.nna", "agentapp"])
def test_nor_is_a_variant_of_the_users_name(password: str) -> None:
    with pytest.raises(BadRequest, match="easy to guess"):
        check_password(password, "ann.smith")


def test_the_name_of_one_is_no_part_of_what_is_guessed_for_the_next() -> None:
    with pytest.raises(BadRequest, match="easy to guess"):
        check_password("wrpkvzqx", "xqzvkprw")
    check_password("wrpkvzqx", "ann")


def test_ordinary_passwords_are_good_enough() -> None:
    for password in ORDINARY:
        check_password(password, "someone")
    letters = random.Random(14)
    for _ in range(100):
        check_password("".join(letters.choices(string.ascii_lowercase + string.digits, k=10)), "someone")


@pytest.mark.parametrize("password", ["x" * 1024, "ab1" * 300, "walnut boat 78 " * 60])
def test_only_the_beginning_of_a_long_password_is_looked_at(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a thousand characters would take a minute and a half."""
    looked_at: list[str] = []
    monkeypatch.setattr(matching, "omnimatch", lambda given, lists: looked_at.append(given) or [])
    with suppress(BadRequest):
        check_password(password, "someone")
    assert looked_at == [password[:32]]


def test_at_sign_in_no_password_is_estimated(
    parts: Parts, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.accounts.add("ann", PASSWORD)

    def refuse(*given: object) -> float:
        raise AssertionError("estimated")

    monkeypatch.setattr("agentapp.storage.passwords._is_common", refuse)
    assert sign_in(app, "ann").get("/chat").status_code == 200


def test_nor_one_that_is_the_name(accounts: Accounts) -> None:
    accounts.add("bartholomew-7", PASSWORD)
    with pytest.raises(BadRequest, match="must not be the name"):
        accounts.add("Marguerite-9", "marguerite-9")
    with pytest.raises(BadRequest, match="must not be the name"):
        accounts.set_password("bartholomew-7", "Bartholomew-7")


def test_the_set_up_page_says_so_and_keeps_the_link(client: FlaskClient, parts: Parts) -> None:
    token = parts.accounts.new_setup_token()
    csrf = csrf_of(client.get(f"/setup?token={token}", headers=PAGE).text)
    for name, password, words in (
        ("ann", "password1", "easy to guess"),
        ("ann", "00000000", "a repetition"),
        ("ann", " " * 8, "spaces only"),
        ("bartholomew", "bartholomew", "must not be the name"),
        (f"{CYRILLIC_A}dmin", PASSWORD, "one alphabet"),
    ):
        body = {"csrf_token": csrf, "username": name, "password": password}
        answer = client.post(f"/setup?token={token}", data=body, headers=PAGE)
        assert answer.status_code == 400
        assert words in answer.text
    body = {"csrf_token": csrf, "username": "ann", "password": PASSWORD}
    assert client.post(f"/setup?token={token}", data=body, headers=JSON).status_code == 303


def test_who_has_a_common_password_from_before_can_sign_in(
    parts: Parts, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("agentapp.storage.accounts.check_password", lambda *given: None)
        parts.accounts.add("ann", "password")
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    body = {"csrf_token": csrf, "username": "ann", "password": "password"}
    assert browser.post("/login", data=body).status_code == 303


def test_starting_does_not_load_the_list() -> None:
    look = "import sys, agentapp.app; sys.exit('zxcvbn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
