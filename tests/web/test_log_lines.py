"""What the log says of requests and turns: a line for each, findable by the id that a person sees."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import update

from agentapp.config import Settings
from agentapp.errors import ProviderBusy, StorageUnavailable
from agentapp.isolation import Scope
from agentapp.server.limits import UNREADABLE
from agentapp.storage.chats import Chats
from agentapp.storage.models import LiveTurn
from agentapp.storage.owned import owned_by
from agentapp.storage.turns import SqlTurnStore
from agentapp.telemetry.bound_records import make_records
from agentapp.telemetry.log_lines import LineFormatter
from agentapp.web.parts import Parts
from tests.support.app_inspection import sql
from tests.support.messages_api import MessagesApi, Script
from tests.support.scripted import Scripted
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, begin, someone
from tests.support.users import EVENTS, JSON, PAGE, Person, csrf_of, person, sign_in

CANARY = "canary-of-private-words"
KEY = "sk-ant-canary-of-a-key"
OF_THE_SESSION = ("request_id", "tenant_id", "user_id", "session_id")


class Lines(logging.Handler):
    """The log as it is written, at the level debug."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(LineFormatter("json").format(record))

    def having(self, **fields: object) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.text) if fields.items() <= line.items()]

    def one(self, **fields: object) -> dict[str, Any]:
        (found,) = self.having(**fields)
        return found


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """Before the app is made: it tells the log of its scopes then."""
    make = logging.getLogRecordFactory()
    make_records()
    written, ours = Lines(), logging.getLogger("agentapp")
    monkeypatch.setattr(ours, "level", logging.DEBUG)
    ours.manager._clear_cache()  # type: ignore[attr-defined]
    ours.addHandler(written)
    yield written
    ours.removeHandler(written)
    logging.setLogRecordFactory(make)


@contextmanager
def by_claude(make_app: Callable[..., Flask], settings: Settings) -> Iterator[tuple[Flask, MessagesApi]]:
    """An app whose model is asked by the real SDK, of a local server."""
    with MessagesApi() as api:
        app = make_app(
            wanted=replace(settings, provider="anthropic", anthropic_api_key=KEY, anthropic_base_url=api.url)
        )
        yield app, api
        app.extensions["agentapp"].turns.kit.driver._provider._provider.close()


def shown_id(page: str) -> str:
    (found,) = re.findall(r"Request id <code>([^<]+)</code>", page)
    return str(found)


# Requests


def test_each_request_has_a_line_with_its_route_its_end_and_its_ids(lines: Lines, ann: Person) -> None:
    chat = ann.new_chat()
    lines.text.clear()
    answer = ann.send(chat, "Hello")
    line = lines.one(event="request")
    assert (line["method"], line["route"], line["status"]) == ("POST", "/chat/<session_id>/messages", 200)
    assert line["request_id"] == answer.headers["X-Request-ID"]
    assert (line["session_id"], line["turn_id"]) == (chat, answer.json["turn_id"])
    assert line["tenant_id"]
    assert line["user_id"]
    assert 0 < line["ms"] < 60_000
    assert (line["level"], line["logger"]) == ("info", "agentapp.web.access_lines")


def test_a_stream_has_its_line_when_it_begins_and_its_turn_when_it_ends(lines: Lines, ann: Person) -> None:
    chat = ann.new_chat()
    lines.text.clear()
    events = ann.stream(chat, "Hello")
    turn_id, request_id = events[0]["turn_id"], events[-1]["request_id"]
    found = {line["event"]: line for line in lines.having(turn_id=turn_id, request_id=request_id)}
    ended = found["turn ended"]
    assert {(name, line["level"]) for name, line in found.items()} == {
        ("turn began", "debug"),
        ("request", "info"),
        ("turn ended", "info"),
    }
    assert (ended["turn_status"], ended["level"], ended["agent"]) == ("completed", "info", "triage")
    assert (ended["input_tokens"] > 0, ended["output_tokens"] > 0, "cost_usd" in ended) == (True, True, True)
    ann.browser.get(f"/chat/{chat}/turns/{turn_id}/events", headers=EVENTS)
    assert lines.one(route="/chat/<session_id>/turns/<turn_id>/events")["turn_id"] == turn_id


def test_what_is_not_found_is_not_repeated(lines: Lines, app: Flask, ann: Person) -> None:
    for path in (f"/{CANARY}", f"/chat/{CANARY}", f"/chat/{CANARY}/turns/{CANARY}/events?{CANARY}"):
        assert ann.browser.get(path, headers=JSON).status_code == 404
        assert app.test_client().get(path).status_code in (303, 401, 404)
    assert ann.browser.open("/chat", method=CANARY.upper()).status_code == 405
    assert CANARY not in "".join(lines.text).lower()
    assert len(lines.having(event="request", status=404, code="not-found")) == 4
    assert lines.one(status=405)["method"] == "-"


def test_health_checks_and_static_files_are_told_only_to_who_wants_everything(
    lines: Lines, app: Flask
) -> None:
    browser = app.test_client()
    for path in ("/livez", "/readyz", "/metrics", "/static/style.css"):
        browser.get(path, headers=PAGE).close()
    browser.get("/login", headers=PAGE)
    levels = {line["route"]: line["level"] for line in lines.having(event="request")}
    assert levels == {
        "/livez": "debug",
        "/readyz": "debug",
        "/metrics": "debug",
        "/static/<filename>": "debug",
        "/login": "info",
    }


def test_a_request_that_could_not_be_read_has_a_line_too(lines: Lines, app: Flask) -> None:
    app.test_client().get("/", environ_overrides={UNREADABLE: (431, "The headers are too large.")})
    line = lines.one(event="request")
    assert (line["method"], line["route"], line["status"], line["code"]) == ("-", "-", 431, "bad-request")


def test_a_line_between_requests_has_no_ids(lines: Lines, ann: Person) -> None:
    ann.stream(ann.new_chat(), "Hello")
    ann.get("/absent")
    logging.getLogger("agentapp.web").info("afterwards")
    assert not set(lines.one(event="afterwards")) & {*OF_THE_SESSION, "turn_id"}


# Turns, and the id that a person sees


def test_a_turn_that_the_provider_failed_is_found_by_the_id_on_its_page(
    lines: Lines, make_app: Callable[..., Flask], settings: Settings
) -> None:
    with by_claude(make_app, settings) as (app, api):
        api.respond_with(Script(status=400, message=CANARY))
        ann = person(app, "ann")
        chat = ann.new_chat()
        events = ann.stream(chat, "Hello")
    request_id = shown_id(ann.get(f"/chat/{chat}").text)
    assert request_id == events[-1]["request_id"]
    ended = lines.one(event="turn ended", request_id=request_id)
    assert (ended["level"], ended["turn_status"], ended["code"]) == ("warning", "failed", "provider-failed")
    assert (ended["session_id"], ended["turn_id"]) == (chat, events[0]["turn_id"])
    failed = [line for line in lines.having(request_id=request_id) if line["event"].startswith("model call")]
    assert [(line["provider_status"], line["turn_id"]) for line in failed] == [(400, ended["turn_id"])]
    assert ended["provider_request_id"] == failed[0]["provider_request_id"]
    assert ended["provider_request_id"]


@pytest.mark.parametrize("kind", ["defect", "storage"])
def test_an_error_is_found_by_the_id_on_its_page(
    kind: str, lines: Lines, settings: Settings, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "storage":
        sql(settings, "ALTER TABLE messages RENAME TO elsewhere")
        page = ann.send(ann.new_chat(), CANARY, PAGE)
    else:
        monkeypatch.setattr(Chats, "page", lambda *args, **kwargs: 1 // 0)
        page = ann.get("/chat")
    status, told = (500, "unexpected error: ") if kind == "defect" else (503, "storage: ")
    assert page.status_code == status
    error, request = lines.having(request_id=shown_id(page.text))
    assert error["event"].startswith(told)
    assert (error["level"], request["event"], request["status"]) == ("error", "request", status)


def test_an_answer_that_could_not_be_stored_is_found_by_the_id_on_its_page(
    lines: Lines, ann: Person, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", ())
    chat = ann.new_chat()
    opened, transactions = SqlTurnStore.chat, 0

    def chat_of(self: Any, *args: Any) -> Any:
        nonlocal transactions
        transactions += 1
        if transactions == 2:
            raise StorageUnavailable("The database cannot be reached right now.")
        return opened(self, *args)

    monkeypatch.setattr(SqlTurnStore, "chat", chat_of)
    end = ann.stream(chat, "Hello")[-1]
    ended = lines.one(event="turn ended")
    assert end["error"]["code"] == ended["code"] == "storage-unavailable"
    assert ended["request_id"] == end["request_id"]
    assert lines.having(request_id=end["request_id"], turn_id=end["turn_id"], level="warning")[0][
        "event"
    ].startswith("turn could not be saved yet")


def test_a_turn_that_lost_its_worker_is_found_by_the_id_on_its_page(
    lines: Lines, app: Flask, parts: Parts
) -> None:
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        turn = begin(parts.turns.kit, uma, "Hello")
        with parts.db.writing() as db:
            over = {"worker": ELSEWHERE, "lease_until": utc_now() - timedelta(minutes=1)}
            db.execute(update(LiveTurn).where(owned_by(uma, LiveTurn)).values(**over))
    browser = sign_in(app, "uma")
    browser.ask(uma.session_id, "Are you there?")
    shown = shown_id(browser.get(f"/chat/{uma.session_id}").text)
    line = lines.one(event="turn has lost its worker")
    assert (line["request_id"], line["turn_id"]) == (shown, turn.id)
    assert (line["session_id"], line["turn_status"]) == (uma.session_id, "interrupted")


@pytest.mark.parametrize("plays", [True, False], ids=["the request's thread", "a thread of its own"])
def test_lines_of_a_turn_have_its_ids_on_whichever_thread_they_are_written(
    plays: bool, lines: Lines, ann: Person, parts: Parts
) -> None:
    def says_so(call: Any) -> Any:
        logging.getLogger("agentapp.somebody").info("asked")
        raise ProviderBusy("overloaded")

    parts.turns.kit.driver._provider = Scripted(says_so)
    chat = ann.new_chat()
    ann.send(chat, "Hello", JSON if plays else PAGE)
    ended, asked = lines.one(event="turn ended"), lines.one(event="asked")
    assert {name: asked[name] for name in (*OF_THE_SESSION, "turn_id")} == {
        name: ended[name] for name in (*OF_THE_SESSION, "turn_id")
    }


def test_the_heartbeats_lines_have_the_id_of_its_job_and_no_request(
    lines: Lines, parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    (heartbeat,) = [each for each in parts.turns.heartbeat.threads if each.name == "heartbeat"]
    job = heartbeat.jobs[0].job
    monkeypatch.setattr(type(job), "run", lambda self, now: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        heartbeat.beat()
    line = lines.one(job=job.name)
    assert line["request_id"].startswith("heartbeat-")
    assert "user_id" not in line


# What is never in it


def test_no_private_word_is_in_any_line_however_much_is_asked_for(
    lines: Lines, make_app: Callable[..., Flask], settings: Settings
) -> None:
    """The most talkative level; words in every place where people, models and providers can put some."""
    with by_claude(make_app, settings) as (app, api):
        ann = person(app, "ann")
        headers = {"User-Agent": CANARY, "Referer": f"http://localhost/{CANARY}", "X-Canary": CANARY}
        ann.browser.set_cookie("more", CANARY)
        chat = ann.new_chat()
        for message in (
            CANARY,
            f'[[tool:calculate {{"expression": "{CANARY}"}}]]',
            f'[[tool:calculate {{"{CANARY}": 1}}]]',
            f"[[tool:{CANARY} {{}}]]",
            f"{CANARY} [[status:401]]",
            f"{CANARY} [[cut:300]]",
            f"{CANARY} [[error-event:{CANARY}]]",
        ):
            for accept in (JSON, EVENTS, PAGE):
                ann.send(
                    chat, message, {**headers, **accept}, idempotency_key=f"{CANARY}{message}{accept}"[-99:]
                )
        api.respond_with(Script(status=400, message=f"{CANARY} {KEY}"))
        ann.send(chat, CANARY)
        ann.post(f"/chat/{chat}/rename", headers, title=CANARY)
        ann.browser.get(f"/chat?q={CANARY}&{CANARY}", headers=headers)
        ann.browser.get(f"/setup?token={CANARY}", headers=headers)
        ann.browser.post(f"/chat/{chat}/messages", data=CANARY, content_type=CANARY)
        ann.post("/account/password", old_password=CANARY, new_password=f"{CANARY} new")
        ann.browser.get(f"/{CANARY}")
        ann.browser.get("/", headers={"Host": CANARY})
        stranger = app.test_client()
        csrf = csrf_of(stranger.get("/login", headers=PAGE).text)
        stranger.set_cookie("agentapp", CANARY)
        stranger.post("/login", data={"csrf_token": csrf, "username": CANARY, "password": CANARY})
    text = "".join(lines.text)
    assert len(lines.having(event="request")) > 30
    assert {line["turn_status"] for line in lines.having(event="turn ended")} >= {"completed", "failed"}
    assert CANARY not in text
    assert KEY not in text
    cookie = ann.browser.get_cookie("agentapp")
    assert cookie is not None
    assert cookie.value not in text


def test_scopes_of_turns_are_those_of_their_request() -> None:
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    turn = scope.of_turn("n")
    assert turn.of_same_chat(scope)
    assert all(getattr(turn, name) == getattr(scope, name) for name in OF_THE_SESSION)
