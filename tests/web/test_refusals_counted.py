"""Whatever a guardrail refuses is counted once, wherever and in whichever form people are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from agentapp.config import Settings
from agentapp.errors import StorageFull
from agentapp.server.turn_loop import TurnLoop
from agentapp.web.parts import Parts
from tests.support.metrics import counted
from tests.support.turns import someone
from tests.support.users import EVENTS, JSON, PAGE, PASSWORD, Person, csrf_of, person

FORMS = pytest.mark.parametrize("headers", [PAGE, JSON, EVENTS], ids=["page", "json", "events"])
Limited = Callable[..., tuple[Person, Parts]]


@pytest.fixture
def limited(make_app: Callable[..., Flask], settings: Settings) -> Limited:
    def make(**wanted: Any) -> tuple[Person, Parts]:
        app = make_app(wanted=replace(settings, **wanted))
        return person(app, "ann"), app.extensions["agentapp"]

    return make


def refused(parts: Parts, code: str, scope: str, count: int = 1) -> bool:
    """This, and nothing else."""
    return counted(parts, "refusals_total") == {f"refusals_total {code} {scope}": count}


@FORMS
def test_a_message_too_many(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited(rate_session=(1, 60.0))
    chat = ann.new_chat()
    assert ann.send(chat, "hello").status_code == 200
    assert ann.send(chat, "hello", headers).status_code == 429
    assert refused(parts, "rate-limited", "session")


@FORMS
def test_a_message_that_costs_too_much(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited(session_tokens=1)
    chat = ann.new_chat()
    ann.send(chat, "hello")
    assert ann.send(chat, "hello", headers).status_code == 429
    assert refused(parts, "budget-exhausted", "session", 1)


@FORMS
def test_no_room_on_disk(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited(storage_user_bytes=1)
    chat = ann.new_chat()
    with parts.db.engine.begin() as connection:
        connection.execute(text("UPDATE users SET stored_bytes = 2"))
    assert ann.send(chat, "hello", headers).status_code == 507
    assert refused(parts, "storage-full", "user")


def test_a_note_of_which_only_the_model_is_told_that_there_is_no_room(limited: Limited) -> None:
    _, parts = limited(storage_user_bytes=1)
    uma = someone(parts, "uma")
    with parts.db.engine.begin() as connection:
        connection.execute(text("UPDATE users SET stored_bytes = 2"))
    with parts.binder.bound(uma), pytest.raises(StorageFull):
        parts.turns.kit.notes.add(uma, "a note")
    assert refused(parts, "storage-full", "user")


def test_a_chat_too_many(limited: Limited) -> None:
    ann, parts = limited(rate_chats=(1, 60.0))
    ann.new_chat()
    assert ann.post("/chat").status_code == 429
    assert refused(parts, "rate-limited", "new-chats")


@pytest.mark.parametrize("headers", [PAGE, JSON], ids=["page", "json"])
def test_a_guess_too_many(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited(rate_login=(2, 900.0))
    stranger = ann.browser.application.test_client()
    csrf = csrf_of(stranger.get("/login", headers=PAGE).text)
    form = {"csrf_token": csrf, "username": "ann", "password": "wrong"}
    found = [stranger.post("/login", data=form, headers=headers).status_code for _ in range(3)]
    assert found == [401, 401, 429]
    assert refused(parts, "rate-limited", "login")


@pytest.mark.parametrize("headers", [PAGE, JSON], ids=["page", "json"])
def test_a_guess_too_many_of_the_old_password(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited(rate_login=(1, 900.0))
    form = {"old_password": "wrong", "new_password": PASSWORD}
    found = [ann.post("/account/password", headers, **form).status_code for _ in range(2)]
    assert found == [401, 429]
    assert refused(parts, "rate-limited", "login")


def test_a_page_too_many(limited: Limited) -> None:
    ann, parts = limited(pages_user=1)
    with parts.binder.bound(someone(parts, "uma")):
        user = next(user for user in parts.accounts.all() if user.name == "ann")
    slot = parts.pages.take(user.id)
    assert ann.get("/chat").status_code == 503
    slot.release()
    assert refused(parts, "busy", "pages")


@FORMS
def test_no_thread_for_a_turn(limited: Limited, headers: dict[str, str]) -> None:
    ann, parts = limited()
    chat = ann.new_chat()
    parts.turns.slots.resize(1, 0)
    slot = parts.turns.slots.take_for_turn("somebody", "elsewhere")
    assert ann.send(chat, "hello", headers).status_code == 503
    slot.release()
    assert refused(parts, "busy", "server")


def test_the_front_door_counts_each_that_it_turns_away_with_an_answer_that_it_keeps(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, parts = limited()
    extensions = ann.browser.application.extensions
    made: list[Any] = []

    def make(*which: Any) -> bytes:
        made.append(which)
        answer: bytes = extensions["agentapp.busy_answer"](*which)
        return answer

    loop: Any = TurnLoop.__new__(TurnLoop)
    loop._busy_answers = {}
    loop.configure_turns(8, {"ann": "t"}.get, make, extensions["agentapp.note_busy"])
    for user in ("ann", None, None):
        connection = SimpleNamespace(user=user, is_turn=False, incoming=SimpleNamespace(wants_page=False))
        assert loop.busy_answer(connection).startswith(b"HTTP/1.1 503")
    assert len(made) == 1
    assert refused(parts, "busy", "server", 3)
    assert parts.telemetry.minutes.total("refusals", "t") == 1
