"""What comes out: headers on every answer, pages without anything inline, exports, streams, refusals."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from agentapp import errors
from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.team import Agent, Team
from agentapp.config import Settings
from agentapp.errors import AgentappError, ProviderFailed, ProviderTimeout
from agentapp.events import KINDS
from agentapp.storage.accounts import Accounts
from agentapp.storage.chats import Chats
from agentapp.turns.turn import SAVED_LATER
from agentapp.web import problems
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page, dump, faults, sql
from tests.support.scripted import SPENT, Scripted
from tests.support.times import utc_now
from tests.support.users import EVENTS, JSON, PAGE, PASSWORD, Person, csrf_of, events_of, person

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
PROBLEM = {"code", "title", "detail", "scope", "retry_after"}
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> [a](javascript:alert(1)) </textarea>"


def check_headers(answer: TestResponse, *, kept: str = "no-store") -> None:
    headers = answer.headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy == POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == kept
    for name in ("Content-Security-Policy", "Cache-Control", "X-Content-Type-Options"):
        assert len(headers.getlist(name)) == 1
    assert not re.search(r"\d", headers.get("Server", ""))


def check_problem(answer: TestResponse, status: int, code: str, *more: str) -> dict[str, Any]:
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json"), answer.text
    body: dict[str, Any] = json.loads(answer.text)
    assert body["code"] == code
    assert set(body) == PROBLEM | set(more)
    assert body["title"]
    assert body["detail"]
    told = answer.headers.get("Retry-After")
    assert told == (None if body["retry_after"] is None else str(body["retry_after"]))
    check_headers(answer)
    return body


@pytest.fixture
def solo(make_app: Callable[..., Flask], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Flask]:
    """An app of one agent whose model says what the test wrote down."""

    def make(model: Any) -> Flask:
        monkeypatch.setattr("agentapp.agents.providers.make", lambda settings: model)
        return make_app(Team(front=Agent(name="solo", instructions="Answer.")))

    return make


class Held:
    """A model that keeps silent until it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        self.asked.set()
        assert self.let_go.wait(60)
        yield "at last"
        yield Reply("at last", usage=SPENT)


@contextmanager
def running(ann: Person, chat: str, held: Held) -> Iterator[None]:
    """While the chat answers a message; the answer is there at the end."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ann.send, chat, "the first message", None, idempotency_key="first")
        try:
            assert held.asked.wait(30)
            yield
        finally:
            held.let_go.set()
        assert first.result(30).json["reply"] == "at last"


def boom(*args: object, **kwargs: object) -> None:
    raise RuntimeError("a detail nobody should see: /etc/secret")


def lose_database(parts: Parts, kind: str) -> None:
    parts.db.close()
    path = Path(parts.settings.database_url.removeprefix("sqlite:///"))
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"this is no database " * 500)


def test_every_kind_of_answer_carries_the_headers(
    app: Flask, client: FlaskClient, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ann.new_chat()
    answers = {
        "page": (ann.get("/chat"), 200),
        "chat": (ann.get(f"/chat/{chat}"), 200),
        "login": (client.get("/login", headers=PAGE), 200),
        "home": (client.get("/"), 303),
        "to the login": (client.get("/chat", headers=PAGE), 303),
        "problem": (client.get("/chat", headers=JSON), 401),
        "absent": (ann.get("/absent"), 404),
        "absent file": (ann.get("/static/absent.css"), 404),
        "method": (ann.get("/logout"), 405),
        "csrf": (ann.browser.post("/chat", headers=PAGE), 403),
        "bad": (ann.get("/chat?page=0"), 400),
        "too large": (ann.browser.post("/chat", data=b"x" * (2 << 20)), 413),
        "stream": (ann.send(ann.new_chat(), "hello", EVENTS), 200),
        "json": (ann.send(chat, "hello", JSON), 200),
        "sent": (ann.send(chat, "hello", PAGE), 303),
        "refused": (ann.send(chat, "", PAGE), 422),
        "export.json": (ann.get(f"/chat/{chat}/export.json"), 200),
        "export.md": (ann.get(f"/chat/{chat}/export.md"), 200),
        "options": (ann.browser.options("/chat"), 200),
        "head": (ann.browser.head("/chat"), 200),
        "livez": (client.get("/livez"), 200),
        "readyz": (client.get("/readyz"), 200),
        "slashes": (client.get("//login"), 308),
        "theme": (ann.post("/theme", theme="dark"), 303),
        "wrong pair": (ann.post("/login", username="ann", password="wrong"), 401),
    }
    monkeypatch.setattr(Chats, "page", boom)
    answers["broken page"] = ann.get("/chat"), 500
    answers["broken"] = ann.browser.get("/chat", headers=JSON), 500
    for name, (answer, status) in answers.items():
        answer.get_data()
        assert answer.status_code == status, name
        check_headers(answer)


def test_static_files_are_kept_only_under_their_digest(client: FlaskClient) -> None:
    page = Page(client.get("/login", headers=PAGE).text)
    found = [link.attributes["href"] for link in page.all("link")]
    found += [script.attributes["src"] for script in page.all("script")]
    assert found
    for address in found:
        assert re.fullmatch(r"/static/[\w.-]+\?v=[0-9a-f]{12}", address), address
        with client.get(address) as answer:
            assert answer.status_code == 200
            check_headers(answer, kept="public, max-age=31536000, immutable")
        with client.get(address.partition("?")[0]) as answer:
            check_headers(answer, kept="no-cache")


def every_page(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Every page in every state, with texts that would do harm if they could."""
    parts: Parts = app.extensions["agentapp"]
    client = app.test_client()
    link = f"/setup?token={parts.accounts.new_setup_token()}"
    yield "set-up", client.get(link, headers=PAGE).text
    csrf = csrf_of(client.get("/login", headers=PAGE).text)
    refused = {"csrf_token": csrf, "username": NASTY, "password": "short"}
    yield "set-up refused", client.post(link, data=refused, headers=PAGE).text
    ann = person(app, "ann")
    yield "login", client.get(f"/login?next=/{NASTY}", headers=PAGE).text
    yield "wrong pair", client.post("/login", data=refused, headers=PAGE).text
    yield "no chats", ann.get("/chat").text
    chat = ann.new_chat()
    yield "an empty chat", ann.get(f"/chat/{chat}").text
    said = (
        NASTY,
        "/markdown",
        "what is 2+2?",
        f"remember {NASTY}",
        "/fail",
        "/fail later",
        f"/call x {NASTY}",
    )
    for message in said:
        ann.send(chat, message, PAGE)
    yield "a chat", ann.get(f"/chat/{chat}").text
    ann.post(f"/chat/{chat}/rename", title=NASTY)
    for status in ("stopped", "interrupted", "running"):
        sql(
            parts.settings,
            "UPDATE turns SET status = ? WHERE id = (SELECT max(id) FROM turns)",
            status,
        )
        yield f"a turn that is {status}", ann.get(f"/chat/{chat}").text
    sql(
        parts.settings,
        "INSERT INTO live_turns (turn_id, tenant_id, user_id, session_id, worker, lease_until, stop_asked)"
        " SELECT id, tenant_id, user_id, session_id, 'somewhere', ?, 0 FROM turns WHERE status = 'running'",
        f"{utc_now() + timedelta(seconds=10):%Y-%m-%d %H:%M:%S.%f}",
    )
    yield "still answering", ann.send(chat, NASTY, PAGE).text
    first = ann.get(f"/chat/{chat}/export.json").json["turns"][0]["id"]
    yield "another version", ann.get(f"/chat/{chat}?version={first}").text
    yield "editing", ann.get(f"/chat/{chat}?edit={first}").text
    yield "an empty message", ann.send(chat, "", PAGE).text
    yield "a message too long", ann.send(chat, NASTY * 900, PAGE).text
    yield "delete", ann.get(f"/chat/{chat}/delete").text
    yield "chats", ann.get("/chat").text
    yield "found", ann.browser.get("/chat", query_string={"q": "script"}, headers=PAGE).text
    yield "nothing found", ann.browser.get("/chat", query_string={"q": NASTY * 2}, headers=PAGE).text
    yield "after the last page", ann.get("/chat?page=9").text
    yield "absent", ann.get(f"/{NASTY}").text
    yield "absent to nobody", client.get("/absent", headers=PAGE).text
    yield "method", ann.get("/logout").text
    yield "csrf", ann.browser.post("/chat", headers=PAGE).text
    yield "title refused", ann.post(f"/chat/{chat}/rename", title=NASTY * 9).text
    ann.post("/theme", theme="dark")
    yield "dark", ann.get(f"/chat/{chat}").text
    with monkeypatch.context() as patched:
        patched.setattr(Chats, "page", boom)
        yield "broken", ann.get("/chat").text
    lose_database(parts, "directory")
    yield "away", ann.get("/chat").text


def test_no_page_holds_anything_inline_and_every_form_holds_the_token(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    for name, html in every_page(app, monkeypatch):
        assert html.lstrip().startswith("<!doctype html>"), name
        assert list(faults(html)) == [], name
        assert "<script>alert" not in html, name
        seen += 1
    assert seen >= 25


FORBIDDEN = [
    "<p style='color:red'>",
    "<style>p{}</style>",
    "<script>x()</script>",
    "<script src='https://evil.example/x.js'></script>",
    "<p onclick='x()'>",
    "<a href=' JavaScript:x()'>",
    "<form method='post' action='/x'></form>",
    "<form action='https://evil.example'></form>",
    "<h1>another</h1>",
    "<img src='https://evil.example/x.png'>",
    "<iframe></iframe>",
    "<base href='/'>",
    "<p id='main'>",
]


def test_the_walk_over_pages_sees_what_is_forbidden(client: FlaskClient) -> None:
    page = client.get("/login", headers=PAGE).text
    assert list(faults(page)) == []
    for bad in FORBIDDEN:
        assert list(faults(page.replace("</main>", f"{bad}</main>"))) != [], bad


def walk(error: type[AgentappError]) -> Iterator[type[AgentappError]]:
    yield error
    for each in error.__subclasses__():
        yield from walk(each)


def test_every_error_has_a_status() -> None:
    codes = {error.code for error in walk(errors.AgentappError)}
    assert codes <= set(problems.TABLE)


def test_statuses_are_those_of_the_contract() -> None:
    promised = {
        "login-required": 401,
        "csrf": 403,
        "turn-in-progress": 409,
        "not-found": 404,
        "idempotency-mismatch": 422,
        "invalid-message": 422,
        "provider-failed": 502,
        "message-too-long": 413,
        "provider-timeout": 504,
        "storage-unavailable": 503,
        "storage-timeout": 503,
        "budget-exhausted": 429,
        "rate-limited": 429,
        "breaker-open": 503,
        "busy": 503,
    }
    assert {code: problems.TABLE[code][0] for code in promised} == promised
    know_when = {error.code for error in errors.GuardrailRefused.__subclasses__()}
    for code, (status, title, retry_after) in problems.TABLE.items():
        assert title
        assert retry_after is not None or code in know_when or status not in (429, 503), (
            f"{code} needs a Retry-After"
        )


def test_problems_have_exactly_the_keys_that_were_promised(client: FlaskClient, ann: Person) -> None:
    chat = ann.new_chat()
    check_problem(client.get("/chat", headers=JSON), 401, "login-required")
    check_problem(ann.browser.post("/chat", headers=JSON), 403, "csrf")
    check_problem(ann.browser.get("/absent", headers=JSON), 404, "not-found")
    check_problem(ann.browser.get("/chat/" + "a" * 22, headers=JSON), 404, "not-found")
    check_problem(ann.browser.get("/logout", headers=JSON), 405, "bad-request")
    check_problem(ann.browser.get("/chat?page=x", headers=JSON), 400, "bad-request")
    check_problem(ann.send(chat, ""), 422, "invalid-message")
    check_problem(ann.send(chat, "x" * 40_000), 413, "message-too-long")
    check_problem(ann.browser.post("/chat", data=b"x" * (2 << 20), headers=JSON), 413, "message-too-long")
    check_problem(ann.post("/login", JSON, username="ann", password="wrong"), 401, "wrong-password")


def test_page_and_problem_use_the_same_words(ann: Person) -> None:
    for path in ("/absent", "/chat?page=0", "/logout", "/setup?token=x"):
        told, page = ann.browser.get(path, headers=JSON), ann.get(path)
        assert told.status_code == page.status_code
        words = " ".join(Page(page.text).all("main")[0].text.split())
        assert told.json["title"] in words
        assert told.json["detail"] in words


def test_an_unexpected_error_tells_nothing_of_itself(
    ann: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Chats, "page", boom)
    page, script = ann.get("/chat"), ann.browser.get("/chat", headers=JSON)
    assert page.status_code == 500
    check_problem(script, 500, "internal")
    for answer in (page, script):
        for word in ("Traceback", "RuntimeError", "secret", "chats.py"):
            assert word not in answer.text
    assert "RuntimeError at " in caplog.text
    assert f"{Path(__file__).name}:" in caplog.text, "the log has the place"
    assert "a detail nobody should see" not in caplog.text


@pytest.mark.parametrize("kind", ["directory", "garbage", "gone"])
def test_while_the_database_is_away_everything_says_so_and_nothing_breaks(
    client: FlaskClient, parts: Parts, ann: Person, kind: str
) -> None:
    chat = ann.new_chat()
    lose_database(parts, kind)
    for path in (
        "/chat",
        f"/chat/{chat}",
        f"/chat/{chat}/export.json",
        f"/chat/{chat}/delete",
        "/login",
        "/x",
    ):
        page, script = ann.get(path), ann.browser.get(path, headers=JSON)
        assert page.status_code == 503, path
        assert page.headers["Retry-After"] == "5"
        assert list(faults(page.text)) == []
        check_problem(script, 503, "storage-unavailable")
    for accept in (JSON, EVENTS):
        check_problem(ann.send(chat, "hello", accept), 503, "storage-unavailable")
    assert ann.send(chat, "hello", PAGE).status_code == 503
    assert ann.post("/logout").status_code == 503, "a logout that did not happen must not look as if it had"
    for browser in (client, ann.browser):
        assert browser.get("/livez", headers=PAGE).status_code == 200
        with browser.get("/static/style.css") as answer:
            assert answer.status_code == 200
        check_problem(browser.get("/readyz"), 503, "storage-unavailable")
        assert browser.get("/readyz", headers=PAGE).status_code == 503
    csrf = csrf_of(client.get("/login", headers=PAGE).text)
    pair = {"csrf_token": csrf, "username": "ann", "password": PASSWORD}
    check_problem(client.post("/login", data=pair, headers=JSON), 503, "storage-unavailable")


def test_what_people_write_does_not_get_into_the_log(
    settings: Settings, ann: Person, caplog: pytest.LogCaptureFixture
) -> None:
    chat = ann.new_chat()
    sql(settings, "ALTER TABLE messages RENAME TO elsewhere")
    assert ann.send(chat, "the words of somebody", idempotency_key="somebodys key").status_code == 503
    ann.browser.get("/chat?q=somebody", headers=JSON)
    assert "no such table" in caplog.text
    assert "somebody" not in caplog.text


def test_livez_touches_nothing(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accounts, "user_of", boom)
    assert client.get("/livez").text == "alive\n"
    assert client.get("/readyz").text == "ready\n"


def test_everything_works_without_scripts(app: Flask, client: FlaskClient) -> None:
    """Only what is on the pages is used: links that are there, and forms with the fields they have."""
    app.extensions["agentapp"].accounts.add("ann", PASSWORD)

    def submit_search(page: TestResponse) -> TestResponse:
        (form,) = [form for form in Page(page.text).forms if form.method == "get"]
        return client.get(form.action, query_string={**form.fields, "q": "sevens"}, headers=PAGE)

    def submit(page: TestResponse, action: str, **typed: str) -> TestResponse:
        form = Page(page.text).form(action)
        assert set(typed) <= set(form.fields) or set(typed.values()) <= set(form.buttons)
        answer = client.post(action, data={**form.fields, **typed}, headers=PAGE)
        assert answer.status_code == 303, answer.text
        return client.get(answer.location, headers=PAGE)

    page = client.get(client.get("/", headers=PAGE).location, headers=PAGE)
    page = client.get(page.location, headers=PAGE)
    page = submit(page, "/login", username="ann", password=PASSWORD)
    page = submit(page, "/chat")
    here = page.request.path
    page = submit(page, f"{here}/messages", message="what is 6*7?")
    assert "42" in page.text
    page = submit(page, f"{here}/rename", title="Sixes and sevens")
    assert Page(page.text).all("h1")[0].text == "Sixes and sevens"
    page = submit(page, "/theme", theme="dark")
    assert page.request.path == here
    page = submit_search(page)
    assert here in page.text
    page = client.get(here, headers=PAGE)
    links = {a.attributes["href"] for a in Page(page.text).all("a")}
    assert {f"{here}/export.md", f"{here}/export.json", f"{here}/delete", "/chat"} <= links
    page = client.get(f"{here}/delete", headers=PAGE)
    assert "Sixes and sevens" in page.text
    assert client.get(here, headers=PAGE).status_code == 200, "asking for confirmation deleted it"
    page = submit(page, f"{here}/delete")
    assert page.request.path == "/chat"
    assert client.get(here, headers=PAGE).status_code == 404
    page = submit(page, "/logout")
    assert page.request.path == "/login"


def test_a_running_turn_is_shown_and_reloaded_without_scripts(solo: Callable[..., Flask]) -> None:
    held = Held()
    ann = person(solo(held), "ann")
    chat = ann.new_chat()
    with running(ann, chat, held):
        page = ann.get(f"/chat/{chat}").text
        assert '<noscript><meta http-equiv="refresh"' in page
        assert "the first message" in page
        assert list(faults(page)) == []
    page = ann.get(f"/chat/{chat}").text
    assert "at last" in page
    assert "http-equiv" not in page


def titles(page: str) -> list[str]:
    return [span.text for span in Page(page).all("span") if span.attributes.get("class") == "row-title"]


def test_65_chats_come_on_three_pages_newest_first(ann: Person) -> None:
    chats = [ann.new_chat() for _ in range(65)]
    ann.post(f"/chat/{chats[7]}/rename", title="a needle")
    shown: list[str] = []
    address: str | None = "/chat"
    pages = 0
    while address:
        page = Page(ann.get(address).text)
        links = page.all("a")
        shown += [a.attributes["href"][6:] for a in links if re.match(r"/chat/.", a.attributes["href"])]
        address = next((a.attributes["href"] for a in links if a.attributes.get("rel") == "next"), None)
        pages += 1
        assert ("prev" in {a.attributes.get("rel") for a in links}) == (pages > 1)
    assert pages == 3
    assert shown == chats[::-1]
    assert titles(ann.get("/chat?q=NEEDLE").text) == ["a needle"]
    found = Page(ann.get("/chat?q=chat").text)
    following = next(a.attributes["href"] for a in found.all("a") if a.attributes.get("rel") == "next")
    assert "q=chat" in following
    assert len(titles(ann.get(following).text)) == 30


def test_a_chat_with_something_new_comes_first(ann: Person) -> None:
    first, _ = ann.new_chat(), ann.new_chat()
    ann.ask(first, "an old chat, taken up again")
    assert titles(ann.get("/chat").text)[0] == "an old chat, taken up again"


def test_a_search_finds_titles_messages_and_answers(ann: Person) -> None:
    chat = ann.new_chat()
    ann.ask(chat, "what is 17*23?")
    ann.post(f"/chat/{chat}/rename", title="Sums")
    ann.new_chat()
    for words in ("sums", "17*23", "391", " Sums "):
        page = ann.browser.get("/chat", query_string={"q": words}, headers=PAGE)
        assert titles(page.text) == ["Sums"], words
    assert titles(ann.get("/chat?q=divisions").text) == []


def test_a_title_is_kept_on_one_line_and_stays_when_more_is_said(ann: Person) -> None:
    chat = ann.new_chat()
    assert ann.post(f"/chat/{chat}/rename", title="  two \n\t words ").location == f"/chat/{chat}"
    ann.ask(chat, "hello")
    assert titles(ann.get("/chat").text) == ["two words"]


def test_deleting_takes_everything_of_the_chat_and_nothing_else(settings: Settings, ann: Person) -> None:
    kept, gone = ann.new_chat(), ann.new_chat()
    ann.ask(kept, "remember this")
    before = dump(settings)
    ann.ask(gone, "remember that")
    ann.post(f"/chat/{gone}/delete")
    after = dump(settings)
    for table in ("turns", "messages", "notes"):
        assert after[table] == before[table]
    assert [row[0] for row in after["sessions"]] == [kept]
    assert ann.post(f"/chat/{gone}/delete", JSON).status_code == 404


def test_the_json_export_has_exactly_the_promised_shape(ann: Person) -> None:
    chat = ann.new_chat()
    for message in ("hello", "/fail", "what is 2+3?", "/fail later"):
        ann.send(chat, message)
    answer = ann.get(f"/chat/{chat}/export.json")
    assert answer.mimetype == "application/json"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="chat-{chat}.json"'
    whole = answer.json
    assert set(whole) == {"session", "turns", "messages"}
    assert set(whole["session"]) == {"id", "title", "created_at"}
    assert whole["session"]["id"] == chat
    for turn in whole["turns"]:
        assert set(turn) == {
            "id",
            "follows",
            "status",
            "agent",
            "usage",
            "cost_usd",
            "started_at",
            "ended_at",
        }
        assert {"input_tokens", "output_tokens"} <= set(turn["usage"])
        assert turn["started_at"] <= turn["ended_at"]
    assert [turn["status"] for turn in whole["turns"]] == ["completed", "failed", "completed", "failed"]
    for message in whole["messages"]:
        assert set(message) == {"seq", "turn_id", "role", "content", "created_at"}
        assert message["created_at"].endswith("+00:00")
    assert [message["seq"] for message in whole["messages"]] == list(range(1, len(whole["messages"]) + 1))
    users = [message["content"] for message in whole["messages"] if message["role"] == "user"]
    assert users == ["hello", "/fail", "what is 2+3?", "/fail later"]
    assert {message["turn_id"] for message in whole["messages"]} == {turn["id"] for turn in whole["turns"]}
    assert {message["role"] for message in whole["messages"]} == {"user", "assistant"}


def test_an_empty_chat_can_be_exported(ann: Person) -> None:
    chat = ann.new_chat()
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert (whole["turns"], whole["messages"]) == ([], [])
    assert ann.get(f"/chat/{chat}/export.md").text.strip() == "# New chat"


def test_the_markdown_export_tells_the_whole_chat_in_order(ann: Person) -> None:
    chat = ann.new_chat()
    replies = [ann.ask(chat, message)["reply"] for message in ("héllo 💥", "what is 2+3?")]
    answer = ann.get(f"/chat/{chat}/export.md")
    assert answer.content_type == "text/markdown; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="chat-{chat}.md"'
    text = answer.get_data().decode()
    assert text.startswith("# héllo 💥\n")
    places = [text.index(part) for part in ("## You", replies[0], "what is 2+3?", replies[1])]
    assert places == sorted(places)
    assert text.count("## You") == 2


def check_stream(events: list[dict[str, Any]], chat: str) -> dict[str, Any]:
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    first, last = events[0], events[-1]
    assert first["event"] == "turn_started"
    assert (first["session_id"], first["turn_id"]) == (chat, last["turn_id"])
    kinds = [event["event"] for event in events]
    assert kinds.count("turn_started") == kinds.count("turn_completed") == 1
    assert last["event"] == "turn_completed"
    assert set(kinds) <= {kind.kind for kind in KINDS}
    assert "".join(event["text"] for event in events if event["event"] == "text") == last["reply"]
    assert {"status", "reply", "html", "usage", "cost_usd"} <= set(last)
    return last


def test_a_turn_as_events(ann: Person) -> None:
    chat = ann.new_chat()
    answer = ann.send(chat, "what is 17*23?", EVENTS)
    assert answer.content_type == "text/event-stream; charset=utf-8"
    events = events_of(answer.text)
    last = check_stream(events, chat)
    assert (last["status"], "error" in last) == ("completed", False)
    assert "391" in last["reply"]
    kinds = [event["event"] for event in events]
    order = ["turn_started", "agent_started", "handed_over", "tool_executing", "tool_completed", "text"]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert kinds.index("tool_completed") < len(kinds) - 1 - kinds[::-1].index("agent_completed")
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert [turn["id"] for turn in whole["turns"]] == [last["turn_id"]]
    assert whole["messages"][-1]["content"] == last["reply"]


def test_the_html_of_a_reply_is_safe(solo: Callable[..., Flask]) -> None:
    ann = person(solo(Scripted(NASTY)), "ann")
    chat = ann.new_chat()
    last = check_stream(ann.stream(chat, "hello"), chat)
    assert last["reply"] == NASTY
    assert list(faults(ann.get(f"/chat/{chat}").text)) == []
    assert {element.tag for element in Page(last["html"]).elements} <= {"p", "a", "br"}


def test_a_turn_as_json(ann: Person) -> None:
    chat = ann.new_chat()
    body = ann.ask(chat, "what is 17*23?")
    assert set(body) == {"turn_id", "status", "reply", "usage", "cost_usd"}
    assert body["status"] == "completed"
    assert "391" in body["reply"]
    assert body["usage"]["input_tokens"] > 0
    assert body["cost_usd"] == 0


def test_a_turn_as_a_page(ann: Person) -> None:
    chat = ann.new_chat()
    answer = ann.send(chat, "what is 17*23?", PAGE)
    assert (answer.status_code, answer.location) == (303, f"/chat/{chat}#latest")
    page = ann.get(answer.location).text
    assert "391" in page
    assert 'id="latest"' in page


FAILURES = [(ProviderFailed, 502, "provider-failed"), (ProviderTimeout, 504, "provider-timeout")]


@pytest.mark.parametrize(("error", "status", "code"), FAILURES, ids=["failed", "timeout"])
def test_a_turn_that_the_provider_failed(
    solo: Callable[..., Flask], error: type[AgentappError], status: int, code: str
) -> None:
    ann = person(solo(Scripted(*[error("The model said no.") for _ in range(3)])), "ann")
    chat = ann.new_chat()
    told = check_problem(ann.send(chat, "as json"), status, code, "turn_id", "request_id")
    answer = ann.send(chat, "as events", EVENTS)
    assert answer.status_code == 200
    last = check_stream(events_of(answer.text), chat)
    assert last["status"] == "failed"
    assert last["error"] == {"code": code, "message": "The model said no."}
    answer = ann.send(chat, "as a page", PAGE)
    assert answer.status_code == 303
    assert "The model said no." in ann.get(answer.location).text
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert [turn["status"] for turn in whole["turns"]] == ["failed"] * 3
    assert [turn["id"] for turn in whole["turns"]][:2] == [told["turn_id"], last["turn_id"]]
    assert [message["content"] for message in whole["messages"]] == ["as json", "as events", "as a page"]


def test_an_unexpected_error_of_a_model_is_told_without_its_text(solo: Callable[..., Flask]) -> None:
    ann = person(solo(Scripted(RuntimeError("/etc/secret"))), "ann")
    chat = ann.new_chat()
    answer = ann.send(chat, "hello")
    assert answer.status_code >= 500
    assert "secret" not in answer.text
    assert "secret" not in ann.get(f"/chat/{chat}").text


def test_the_same_key_and_text_make_one_turn_and_one_call(solo: Callable[..., Flask]) -> None:
    model = Scripted("only once")
    ann = person(solo(model), "ann")
    chat = ann.new_chat()
    first = ann.send(chat, "hello\r\nthere", idempotency_key="k").json
    again = ann.send(chat, "hello\nthere", idempotency_key="k").json
    assert again == first
    streamed = check_stream(events_of(ann.send(chat, "hello\nthere", EVENTS, idempotency_key="k").text), chat)
    assert (streamed["turn_id"], streamed["reply"]) == (first["turn_id"], "only once")
    assert ann.send(chat, "hello\nthere", PAGE, idempotency_key="k").status_code == 303
    assert len(model.asked) == 1
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert (len(whole["turns"]), len(whole["messages"])) == (1, 2)


def test_the_same_key_for_a_failed_turn_tells_of_the_failure_again(solo: Callable[..., Flask]) -> None:
    model = Scripted(ProviderFailed("The model said no."))
    ann = person(solo(model), "ann")
    chat = ann.new_chat()
    first, again = (ann.send(chat, "hello", idempotency_key="k") for _ in range(2))
    assert (first.status_code, again.status_code) == (502, 502)
    assert first.json["turn_id"] == again.json["turn_id"]
    assert len(model.asked) == 1


def test_the_same_key_with_another_text_is_refused(solo: Callable[..., Flask], settings: Settings) -> None:
    model = Scripted("only once", "in another chat")
    ann = person(solo(model), "ann")
    chat = ann.new_chat()
    ann.send(chat, "hello", idempotency_key="k")
    before = dump(settings)
    check_problem(ann.send(chat, "goodbye", idempotency_key="k"), 422, "idempotency-mismatch")
    check_problem(ann.send(chat, "goodbye", EVENTS, idempotency_key="k"), 422, "idempotency-mismatch")
    page = ann.send(chat, "goodbye", PAGE, idempotency_key="k")
    assert page.status_code == 422
    form = Page(page.text).form(f"/chat/{chat}/messages")
    assert form.fields["message"] == "goodbye"
    assert form.fields["idempotency_key"] not in ("", "k"), "sending again must be able to succeed"
    assert dump(settings) == before
    assert ann.send(ann.new_chat(), "goodbye", idempotency_key="k").status_code == 200


def test_a_second_message_while_a_turn_runs_is_409_and_the_page_keeps_it(solo: Callable[..., Flask]) -> None:
    held = Held()
    app = solo(held)
    ann, bob = person(app, "ann"), person(app, "bob")
    chat = ann.new_chat()
    with running(ann, chat, held):
        code, link = "turn-in-progress", ("turn_id", "turn_url")
        told = check_problem(ann.send(chat, "a second one"), 409, code, *link)
        check_problem(ann.send(chat, "a second one", EVENTS), 409, code, *link)
        assert told["turn_url"] == f"/chat/{chat}/turns/{told['turn_id']}/events"
        page = ann.send(chat, "a second <one>", PAGE)
        assert page.status_code == 409
        assert Page(page.text).form(f"/chat/{chat}/messages").fields["message"] == "a second <one>"
        held.let_go.set()
        assert ann.browser.get(told["turn_url"], headers=EVENTS).text.count("event: turn_completed") == 1
        assert bob.send(bob.new_chat(), "hello").status_code == 200
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert [turn["id"] for turn in whole["turns"]] == [told["turn_id"]]
    assert [message["content"] for message in whole["messages"]] == ["the first message", "at last"]


def test_of_eight_messages_at_once_one_is_taken(solo: Callable[..., Flask]) -> None:
    held = Held()
    app = solo(held)
    ann = person(app, "ann")
    chat = ann.new_chat()
    cookie = ann.browser.get_cookie("agentapp")
    assert cookie
    start, refused = threading.Barrier(8), threading.Semaphore(0)

    def send(number: int) -> int:
        browser = app.test_client()
        browser.set_cookie("agentapp", cookie.value)
        start.wait(30)
        status = Person("ann", browser, ann.csrf).send(chat, f"message {number}").status_code
        refused.release()
        return status

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(send, number) for number in range(8)]
        for _ in range(7):
            assert refused.acquire(timeout=30)
        held.let_go.set()
        statuses = sorted(answer.result(30) for answer in answers)
    assert statuses == [200] + [409] * 7
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert [message["seq"] for message in whole["messages"]] == [1, 2]


def test_an_answer_that_cannot_be_saved_is_told_as_such(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object) -> None:
        raise errors.StorageUnavailable("The database cannot be reached right now.")

    first, second = ann.new_chat(), ann.new_chat()
    with monkeypatch.context() as patch:
        patch.setattr("agentapp.turns.ends.Settlement.store", away)
        patch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0,))
        check_problem(ann.send(first, "hello"), 503, "storage-unavailable", "turn_id", "request_id")
        last = check_stream(ann.stream(second, "hello"), second)
    error = {"code": "storage-unavailable", "message": SAVED_LATER, "can_retry": False}
    assert (last["status"], last["error"]) == ("failed", error)
