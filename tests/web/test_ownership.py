"""Somebody else's chat or turn answers like one that is not there, on every route and in every form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.isolation import Scope, UserScope, new_id
from agentapp.storage.words import indexed_words
from agentapp.web.parts import Parts
from tests.support.app_inspection import FIELDS, Page, dump, likeness, path_of, routes, sql
from tests.support.times import utc_now
from tests.support.users import EVENTS, JSON, PAGE, Person, csrf_of, person

ANY = {"Accept": "*/*"}
SECRET = "xylophone"


@pytest.fixture
def eve(app: Flask) -> Person:
    """Somebody of Ann's own tenant."""
    return person(app, "eve")


@pytest.fixture
def chat(ann: Person) -> str:
    made = ann.new_chat()
    ann.ask(made, f"remember the {SECRET}")
    ann.post(f"/chat/{made}/rename", title=f"{SECRET} lessons")
    return made


def about_chats(app: Flask) -> list[tuple[Rule, str]]:
    found = [(rule, method) for rule, method in routes(app) if "session_id" in rule.arguments]
    assert len(found) >= 22, "the walk found too few routes"
    assert {"turns.send", "turns.events", "turns.stop", "turns.retry"} <= {rule.endpoint for rule, _ in found}
    return [(rule, method) for rule, method in found if method != "OPTIONS"]


def ask(
    app: Flask, who: Person, rule: Rule, method: str, session_id: str, headers: dict[str, str], **other: str
) -> TestResponse:
    path = path_of(app, rule, session_id=session_id, **other)
    body = {"csrf_token": who.csrf, **FIELDS.get(rule.endpoint, {})} if method == "POST" else None
    answer = who.browser.open(path, method=method, data=body, headers=headers)
    answer.get_data()
    return answer


in_every_form = pytest.mark.parametrize(
    "headers", [PAGE, JSON, EVENTS, ANY], ids=["page", "json", "events", "any"]
)


def turn_in(settings: Settings, chat: str) -> str:
    ((found,),) = sql(settings, "SELECT id FROM turns WHERE session_id = ? LIMIT 1", chat)
    return str(found)


@contextmanager
def nothing_written(settings: Settings) -> Iterator[None]:
    before = dump(settings)
    yield
    assert dump(settings) == before


@in_every_form
def test_somebody_elses_chat_answers_like_an_absent_one(
    app: Flask, settings: Settings, ann: Person, bob: Person, eve: Person, chat: str, headers: dict[str, str]
) -> None:
    turn, absent = turn_in(settings, chat), new_id()
    with nothing_written(settings):
        for intruder in (bob, eve):
            for rule, method in about_chats(app):
                theirs, nobodys = (
                    ask(app, intruder, rule, method, each, headers, turn_id=turn) for each in (chat, absent)
                )
                assert_absent(theirs, chat, nobodys, absent, f"{intruder.name}: {method} {rule.rule}")


def assert_absent(theirs: TestResponse, it: str, nobodys: TestResponse, absent: str, request: str) -> None:
    assert theirs.status_code == 404, request
    assert likeness(theirs, it) == likeness(nobodys, absent), request
    assert SECRET not in theirs.text, request


def in_a_chat_of_ones_own(*people: Person) -> Iterator[tuple[Person, str]]:
    for who in people:
        mine = who.new_chat()
        who.ask(mine, "hello")
        yield who, mine


@in_every_form
def test_a_turn_of_another_chat_answers_like_an_absent_one(
    app: Flask, settings: Settings, ann: Person, bob: Person, eve: Person, chat: str, headers: dict[str, str]
) -> None:
    """In a chat that is one's own, and whether the other chat is somebody else's or one's own too."""
    turn, absent = turn_in(settings, chat), new_id()
    about_turns = [(rule, method) for rule, method in about_chats(app) if "turn_id" in rule.arguments]
    for who, mine in in_a_chat_of_ones_own(ann, bob, eve):
        with nothing_written(settings):
            for rule, method in about_turns:
                theirs, nobodys = (
                    ask(app, who, rule, method, mine, headers, turn_id=each) for each in (turn, absent)
                )
                assert_absent(theirs, turn, nobodys, absent, f"{who.name}: {method} {rule.rule}")


@in_every_form
@pytest.mark.parametrize("name", ["after", "replaces"])
def test_nothing_can_be_said_after_or_instead_of_a_turn_of_another_chat(
    settings: Settings, ann: Person, bob: Person, eve: Person, chat: str, name: str, headers: dict[str, str]
) -> None:
    turn, absent = turn_in(settings, chat), new_id()
    for who, mine in in_a_chat_of_ones_own(ann, bob, eve):
        with nothing_written(settings):
            for message, status in (("and now?", 404), ("", 422)):
                theirs, nobodys = (
                    who.send(mine, message, headers, **{name: each}) for each in (turn, absent)
                )
                assert_alike(theirs, turn, nobodys, absent, status)


@pytest.mark.parametrize("name", ["version", "edit", "before"])
def test_a_page_cannot_be_asked_for_a_turn_of_another_chat(
    settings: Settings, ann: Person, bob: Person, eve: Person, chat: str, name: str
) -> None:
    turn, absent = turn_in(settings, chat), new_id()
    for who in (ann, bob, eve):
        mine = who.new_chat()
        own = who.ask(mine, "hello")["turn_id"]
        after = who.ask(mine, "hello again")["turn_id"]
        assert who.get(f"/chat/{mine}?{name}={after}").status_code == 200
        for more in ("", f"&version={own}", f"&edit={own}", f"&before={after}"):
            theirs, nobodys = (who.get(f"/chat/{mine}?{name}={each}{more}") for each in (turn, absent))
            assert_alike(theirs, turn, nobodys, absent, 404)


def assert_alike(theirs: TestResponse, turn: str, nobodys: TestResponse, absent: str, status: int) -> None:
    """Where a page of one's own is shown: Ann's lists her chats, and one has the secret in its title."""
    assert theirs.status_code == status
    assert likeness_without_key(theirs, turn) == likeness_without_key(nobodys, absent)
    assert f"remember the {SECRET}" not in theirs.text


def likeness_without_key(answer: TestResponse, *ids: str) -> tuple[int, list[tuple[str, str]], str]:
    """A page that is shown again has a new key in its forms every time."""
    keys = re.findall(r'name="idempotency_key" value="([\w-]{22})', answer.text)
    return likeness(answer, *ids, *keys)


def test_the_same_requests_are_answered_to_the_owner(app: Flask, ann: Person) -> None:
    """Without this the tests above could pass because of a wrong address."""
    for rule, method in about_chats(app):
        mine = ann.new_chat()
        turn = ann.ask(mine, "hello")["turn_id"]
        answer = ask(app, ann, rule, method, mine, JSON, turn_id=turn)
        assert answer.status_code in (200, 303), f"{method} {rule.rule}: {answer.text}"


def test_nobody_signed_out_learns_whether_a_chat_or_a_turn_exists(
    app: Flask, settings: Settings, ann: Person, chat: str
) -> None:
    nobody, before = app.test_client(), dump(settings)
    there = {"session_id": chat, "turn_id": turn_in(settings, chat)}
    absent = {"session_id": new_id(), "turn_id": new_id()}
    csrf = csrf_of(nobody.get("/login", headers=PAGE).text)
    for rule, method in about_chats(app):
        for token in ({}, {"csrf_token": csrf}) if method == "POST" else ({},):
            body = {**token, **FIELDS.get(rule.endpoint, {})} if method == "POST" else None
            for headers, status in ((PAGE, 303), (JSON, 401), (EVENTS, 401)):
                answers = []
                for ids in (there, absent):
                    path = path_of(app, rule, **ids)
                    answer = nobody.open(path, method=method, data=body, headers=headers)
                    assert answer.status_code == status, f"{method} {path}"
                    answers.append(likeness(answer, *ids.values()))
                assert answers[0] == answers[1], f"{method} {rule.rule}"
    assert dump(settings) == before


def test_a_refused_message_is_refused_alike_for_an_absent_and_for_somebody_elses_chat(
    settings: Settings, bob: Person, chat: str
) -> None:
    before, absent = dump(settings), new_id()
    for message in ("", "x" * 32_001, "a\0b"):
        for headers in (PAGE, JSON, EVENTS):
            theirs, nobodys = (bob.send(each, message, headers) for each in (chat, absent))
            assert likeness(theirs, chat) == likeness(nobodys, absent)
            assert 400 <= theirs.status_code < 500
            assert SECRET not in theirs.text
    assert dump(settings) == before


def test_somebody_elses_key_and_running_turn_cannot_be_seen(
    settings: Settings, ann: Person, bob: Person, chat: str
) -> None:
    turn = ann.send(chat, "hello", idempotency_key="same").json["turn_id"]
    until = f"{utc_now() + timedelta(seconds=10):%Y-%m-%d %H:%M:%S.%f}"
    sql(settings, "UPDATE turns SET status = 'running' WHERE id = ?", turn)
    sql(
        settings,
        "INSERT INTO live_turns (turn_id, tenant_id, user_id, session_id, worker, lease_until, stop_asked)"
        " SELECT id, tenant_id, user_id, session_id, 'another', ?, 0 FROM turns WHERE id = ?",
        until,
        turn,
    )
    mine = bob.new_chat()
    before = dump(settings)
    for message in ("hello", "something else"):
        assert bob.send(chat, message, idempotency_key="same").status_code == 404
    for where in (chat, mine):
        assert bob.get(f"/chat/{where}/turns/{turn}/events").status_code == 404
        for what in ("stop", "retry"):
            assert bob.post(f"/chat/{where}/turns/{turn}/{what}", JSON).status_code == 404
    assert dump(settings) == before
    assert bob.send(mine, "my own words", idempotency_key="same").status_code == 200
    refused = ann.send(chat, "something else")
    assert (refused.status_code, refused.json["turn_id"]) == (409, turn), (
        "it does not run: this shows nothing"
    )


def test_the_list_shows_only_ones_own_chats(ann: Person, bob: Person, eve: Person, chat: str) -> None:
    assert chat in ann.get("/chat").text
    for intruder in (bob, eve):
        mine = intruder.new_chat()
        for path in ("/chat", "/chat?page=2", f"/chat?q={SECRET}", "/chat?q=%25", f"/chat/{mine}"):
            page = intruder.get(path).text
            assert chat not in page
            assert f"{SECRET} lessons" not in page


def test_a_search_finds_only_ones_own_words(ann: Person, bob: Person, eve: Person, chat: str) -> None:
    assert f"/chat/{chat}" in ann.get(f"/chat?q={SECRET}").text
    for intruder in (bob, eve):
        page = Page(intruder.get(f"/chat?q={SECRET}").text)
        assert [a for a in page.all("a") if re.match(r"/chat/.", a.attributes.get("href", ""))] == []


def test_the_model_can_search_only_the_persons_own_chats(
    ann: Person, bob: Person, eve: Person, chat: str
) -> None:
    question = f"search my chats for {SECRET}"
    found = ann.ask(ann.new_chat(), question)["reply"]
    assert f"{SECRET} lessons" in found
    for intruder in (bob, eve):
        reply = intruder.ask(intruder.new_chat(), question)["reply"]
        assert f"{SECRET} lessons" not in reply
        assert "remember the" not in reply


def test_notes_belong_to_one_chat_of_one_person(ann: Person, bob: Person, eve: Person, chat: str) -> None:
    assert SECRET in ann.ask(chat, "my notes")["reply"]
    for who in (ann, bob, eve):
        assert SECRET not in who.ask(who.new_chat(), "my notes")["reply"]


def scope_of(settings: Settings, user: str, session_id: str) -> Scope:
    ((tenant_id, user_id),) = sql(settings, "SELECT tenant_id, id FROM users WHERE name = ?", user)
    return Scope(request_id=new_id(), tenant_id=tenant_id, user_id=user_id, session_id=session_id)


@pytest.mark.parametrize("swap", ["tenant_id", "user_id"])
def test_tenant_and_user_must_both_be_right(
    settings: Settings, parts: Parts, ann: Person, bob: Person, eve: Person, chat: str, swap: str
) -> None:
    """Bob's tenant with Ann's user, and Ann's tenant with Eve's user: neither sees anything."""
    ann_s = scope_of(settings, "ann", chat)
    other = scope_of(settings, "bob" if swap == "tenant_id" else "eve", chat)
    mixed = replace(ann_s, request_id=new_id(), **{swap: getattr(other, swap)})
    of_user = UserScope(request_id=mixed.request_id, tenant_id=mixed.tenant_id, user_id=mixed.user_id)
    notes = parts.turns.kit.notes
    with parts.binder.bound(ann_s):
        assert parts.chats.page(ann_s)[0]
        assert notes.all(ann_s)
    with parts.binder.bound(mixed):
        assert parts.chats.page(of_user) == ([], False)
        assert list(parts.chats.search(of_user.within("another-chat"), SECRET, 5)) == []
        assert list(notes.all(mixed)) == []
        assert not notes.remove(mixed, 1)
        for job in (parts.chats.get, parts.chats.transcript, parts.turns.delete_chat):
            with pytest.raises(Exception, match="no such chat"):
                job(mixed)
        with pytest.raises(Exception, match="no such chat"):
            notes.add(mixed, "mine")


def test_the_same_chat_id_in_a_session_of_another_user_is_never_joined(
    settings: Settings, parts: Parts, ann: Person, bob: Person, chat: str
) -> None:
    """A row that names Bob inside Ann's chat (which no code path makes) shows up for neither."""
    bobs = scope_of(settings, "bob", chat)
    ((turn,),) = sql(settings, "SELECT id FROM turns LIMIT 1")
    sql(
        settings,
        "INSERT INTO messages (id, tenant_id, user_id, session_id, turn_id, seq, role, content, created_at)"
        " VALUES ('stray', ?, ?, ?, ?, 99, 'user', 'a stray word', '2026-01-01 00:00:00.000000')",
        bobs.tenant_id,
        bobs.user_id,
        chat,
        turn,
    )
    sql(
        settings,
        "INSERT INTO search_entries (tenant_id, user_id, session_id, message_id, words)"
        " VALUES (?, ?, ?, 'stray', ?)",
        bobs.tenant_id,
        bobs.user_id,
        chat,
        indexed_words(bobs.user_id, "a stray word"),
    )
    assert "a stray word" not in ann.get(f"/chat/{chat}/export.json").text
    assert f"/chat/{chat}" not in bob.get("/chat?q=stray").text
    assert f"/chat/{chat}" not in ann.get("/chat?q=stray").text
    for name in ("ann", "bob"):
        scope = scope_of(settings, name, "another-chat-of-theirs")
        with parts.binder.bound(scope):
            assert list(parts.chats.search(scope, "stray", 5)) == []


def test_searched_words_are_taken_literally(ann: Person) -> None:
    for title in ("100% sure", "100 percent", "snake_case", "snakeXcase", "back\\slash", "plain"):
        ann.post(f"/chat/{ann.new_chat()}/rename", title=title)
    wanted = {
        "%": [],
        "100%": ["100 percent", "100% sure"],
        "100% sure": ["100% sure"],
        "_": [],
        "snake_c": [],
        "snake_cas": ["snake_case"],
        "\\": [],
        "back\\sla": ["back\\slash"],
        "snake*": ["snakeXcase", "snake_case"],
        "plain OR sure": [],
        "SNAKE_": ["snakeXcase", "snake_case"],
        "' OR 1=1 --": [],
        "[a-z]": [],
        "*": [],
    }
    found = {}
    for words in wanted:
        page = Page(ann.browser.get("/chat", query_string={"q": words}, headers=PAGE).text)
        found[words] = [span.text for span in page.all("span") if span.attributes.get("class") == "row-title"]
    assert found == wanted
