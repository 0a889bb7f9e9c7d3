"""Room for chats as people meet it: the meter when it gets short, the refusal, and a disk that is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from agentapp.agents.provider import Reply
from agentapp.agents.team import Agent, Team
from agentapp.agents.tools.notes import add_note
from agentapp.config import Settings
from agentapp.storage.db import Database
from agentapp.turns.turn import SAVED_LATER
from agentapp.web.parts import Parts
from tests.support.databases import only_sqlite
from tests.support.full_disks import full_postgresql, full_sqlite
from tests.support.scripted import Scripted, calls
from tests.support.users import EVENTS, JSON, PAGE, Person, person, sign_in
from tests.web.test_limits_page import Shown

LIMIT = 200_000_000


@pytest.fixture
def limited(make_app: Callable[..., Flask], settings: Settings) -> Flask:
    return make_app(wanted=replace(settings, storage_tenant_bytes=2 * LIMIT))


def keep(app: Flask, name: str, size: int) -> None:
    """As if that user kept so many bytes, by the user's row."""
    parts: Parts = app.extensions["agentapp"]
    with parts.db.engine.begin() as connection:
        update = text("UPDATE users SET stored_bytes = :size WHERE name = :name")
        connection.execute(update, {"size": size, "name": name})


@pytest.mark.parametrize(
    ("share", "level", "words"),
    [
        (0.7499, None, ""),
        (0.75, "low", "Storage is filling up: 150 MB of 200 MB. Delete chats to make room."),
        (0.8999, "low", "Storage is filling up: 179.9 MB of 200 MB."),
        (0.9, "high", "Storage is almost full: 180 MB of 200 MB. Delete chats to make room."),
        (1.0, "full", "Storage is full: 200 MB of 200 MB"),
    ],
)
def test_the_page_says_when_room_gets_short(limited: Flask, share: float, level: Any, words: str) -> None:
    ann = person(limited, "ann")
    chat = ann.new_chat()
    keep(limited, "ann", round(share * LIMIT))
    for path in (f"/chat/{chat}", f"/chat/{chat}/limits"):
        shown = Shown(ann.get(path).text)
        assert shown.levels == ([level] if level else [])
        assert words in shown.meters
        assert ('<a href="/chat">Delete chats to make room.</a>' in shown.html) == (level in ("low", "high"))
        assert ("Your chats take" in shown.says) == (level == "full")
    listed = ann.get("/chat").text
    assert listed.count('<a href="/chat">Delete') == 0
    assert (f'data-level="{level}"' in listed) == bool(level), "where chats are deleted it is shown too"


def test_a_message_that_finds_no_room_is_refused_in_words_and_stays_in_the_box(limited: Flask) -> None:
    ann, bob = person(limited, "ann"), person(limited, "bob", tenant="elsewhere")
    chat = ann.new_chat()
    keep(limited, "ann", LIMIT + 340_000)
    answer = ann.send(chat, "hello", JSON)
    assert (answer.status_code, answer.headers.get("Retry-After")) == (507, None)
    assert answer.get_json() == {
        "code": "storage-full",
        "title": "No room left",
        "detail": "Your chats take 200.3 MB, and 200 MB is the limit. Delete chats to make room."
        " An operator can raise the limit.",
        "scope": "user",
        "limit": LIMIT,
        "used": LIMIT + 340_000,
        "retry_after": None,
    }
    page = ann.send(chat, "my words", PAGE)
    assert page.status_code == 507
    assert ">my words</textarea>" in page.text
    assert Shown(page.text).says.startswith("Not sent. Your chats take 200.3 MB")
    for refused in (
        ann.post("/chat", headers=JSON),
        ann.post(f"/chat/{chat}/rename", title="x", headers=JSON),
    ):
        assert (refused.status_code, refused.get_json()["code"]) == (507, "storage-full")
    assert ann.get(f"/chat/{chat}").status_code == 200
    assert ann.get(f"/chat/{chat}/export.json").status_code == 200
    bob.ask(bob.new_chat(), "hello")
    assert ann.post(f"/chat/{chat}/delete").status_code == 303
    assert ann.post("/logout").status_code == 303


def test_a_full_tenant_is_told_whose_limit_it_is(limited: Flask) -> None:
    ann, bob = person(limited, "ann"), person(limited, "bob")
    eve = person(limited, "eve", tenant="elsewhere")
    chat = bob.new_chat()
    keep(limited, "ann", 2 * LIMIT)
    answer = bob.send(chat, "hello", JSON).get_json()
    assert (answer["code"], answer["scope"], answer["limit"]) == ("storage-full", "tenant", 2 * LIMIT)
    assert answer["detail"].startswith("The chats of your organisation take 400 MB, and 400 MB is the limit.")
    assert "in your organisation" in Shown(bob.get(f"/chat/{chat}").text).meters
    assert ann.send(ann_chat(limited, ann), "hello", JSON).get_json()["scope"] == "user"
    eve.ask(eve.new_chat(), "hello")


def ann_chat(app: Flask, ann: Person) -> str:
    """A chat that was made while there was room."""
    keep(app, "ann", 0)
    chat = ann.new_chat()
    keep(app, "ann", 2 * LIMIT)
    return chat


def scripted(app: Flask, *answers: Any) -> Scripted:
    """Put this model into the app."""
    model, parts = Scripted(*answers), app.extensions["agentapp"]
    parts.turns.kit.driver._provider = model
    return model


def test_a_note_that_finds_no_room_is_an_error_that_the_model_can_tell(
    make_app: Callable[..., Flask],
) -> None:
    app = make_app(team=Team(Agent("solo", "Go.", tools=(add_note,))))

    def calls_when_full(call: Any) -> Any:
        keep(app, "ann", LIMIT)
        return calls(("add_note", {"text": "buy milk"}))

    model = scripted(app, lambda call: [calls_when_full(call)], "There is no room.")
    ann = person(app, "ann")
    assert ann.ask(ann.new_chat(), "Note this")["reply"] == "There is no room."
    (told,) = model.asked[-1].messages[-1].results
    assert told.is_error
    assert told.content.startswith("add_note failed: the note was not kept. Your chats take 200 MB")


@pytest.fixture
def on_full_disk(
    database_url: str, make_app: Callable[..., Flask], settings: Settings
) -> tuple[Flask, Callable[[], AbstractContextManager[None]]]:
    """An app, and how its disk is filled."""
    app = make_app(wanted=replace(settings, database_url=database_url))
    db: Database = app.extensions["agentapp"].db
    fills = full_sqlite if db.engine.dialect.name == "sqlite" else full_postgresql
    return app, lambda: fills(db)


def test_a_full_disk_pays_for_nothing(on_full_disk: Any, caplog: pytest.LogCaptureFixture) -> None:
    app, full_disk = on_full_disk
    model, ann = scripted(app, "There is room."), person(app, "ann")
    chat, second = ann.new_chat(), sign_in(app, "ann")
    with full_disk():
        for headers in (JSON, EVENTS, PAGE):
            answer = ann.send(chat, "x" * 32_000, headers)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert "The server&#39;s disk is full" in answer.text or "server's disk is full" in answer.text
        assert ann.get(f"/chat/{chat}").status_code == 200, "what is there can be read"
        for path in ("/chat", f"/chat/{chat}/rename", "/logout"):
            written = second.post(path, title="x" * 200)
            assert written.status_code in (303, 503), "small things may still find room"
    assert model.asked == []
    told = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 1, told
    assert told[0].startswith("the disk of the database is full")
    assert ann.ask(chat, "x" * 32_000)["reply"] == "There is room."
    shown = ann.get(f"/chat/{chat}/export.json").get_json()
    assert len(shown["turns"]) == 1, "of the refused messages nothing was kept"


@only_sqlite
def test_a_disk_that_fills_while_an_answer_is_written_is_a_clear_end_and_the_message_stays(
    on_full_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, full_disk = on_full_disk
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
    ann, filled = person(app, "ann"), ExitStack()
    chat = ann.new_chat()

    def fills_the_disk(call: Any) -> Any:
        filled.enter_context(full_disk())
        return ["word " * 40_000, Reply("word " * 40_000)]

    scripted(app, fills_the_disk)
    with filled:
        answer = ann.send(chat, "my question", JSON)
        assert answer.status_code == 503
        assert (answer.get_json()["code"], answer.get_json()["detail"]) == (
            "storage-unavailable",
            SAVED_LATER,
        )
    assert "my question" in ann.get(f"/chat/{chat}").text
