"""Somebody else's chat answers like one that is not there, on every route and in every form."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.isolation import Scope, UserScope
from agentapp.storage.values import new_id
from agentapp.web.parts import Parts
from tests.people import EVENTS, JSON, PAGE, Person, person
from tests.watching import FIELDS, Page, dump, likeness, path_of, routes, sql

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
    assert len(found) >= 14, "the walk found too few routes"
    return [(rule, method) for rule, method in found if method != "OPTIONS"]


def ask(
    app: Flask, who: Person, rule: Rule, method: str, session_id: str, headers: dict[str, str], **other: str
) -> TestResponse:
    path = path_of(app, rule, session_id=session_id, **other)
    body = {"csrf_token": who.csrf, **FIELDS.get(rule.endpoint, {})} if method == "POST" else None
    answer = who.browser.open(path, method=method, data=body, headers=headers)
    answer.get_data()
    return answer


@pytest.mark.parametrize("headers", [PAGE, JSON, EVENTS, ANY], ids=["page", "json", "events", "any"])
def test_somebody_elses_chat_answers_like_an_absent_one(
    app: Flask, settings: Settings, ann: Person, bob: Person, eve: Person, chat: str, headers: dict[str, str]
) -> None:
    (turn,) = sql(settings, "SELECT id FROM turns LIMIT 1")[0]
    before, absent = dump(settings), new_id()
    for intruder in (bob, eve):
        for rule, method in about_chats(app):
            theirs = ask(app, intruder, rule, method, chat, headers, turn_id=turn)
            nobodys = ask(app, intruder, rule, method, absent, headers, turn_id=turn)
            assert theirs.status_code == 404, f"{intruder.name}: {method} {rule.rule}"
            assert likeness(theirs, chat) == likeness(nobodys, absent), f"{method} {rule.rule}"
            assert SECRET not in theirs.text
    assert dump(settings) == before


def test_the_same_requests_are_answered_to_the_owner(app: Flask, ann: Person) -> None:
    """Without this the test above could pass because of a wrong address."""
    for rule, method in about_chats(app):
        if rule.arguments == {"session_id"}:
            answer = ask(app, ann, rule, method, ann.new_chat(), JSON)
            assert answer.status_code in (200, 303), f"{method} {rule.rule}: {answer.text}"


def test_nobody_signed_out_learns_whether_a_chat_exists(app: Flask, ann: Person, chat: str) -> None:
    nobody = app.test_client()
    for rule, _ in routes(app, "GET"):
        if "session_id" not in rule.arguments:
            continue
        absent = new_id()
        for headers, status in ((PAGE, 303), (JSON, 401)):
            answers = []
            for each in (chat, absent):
                answer = nobody.get(path_of(app, rule, session_id=each), headers=headers)
                assert answer.status_code == status
                answers.append(likeness(answer, each))
            assert answers[0] == answers[1]


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
    ann.send(chat, "hello", idempotency_key="same")
    sql(
        settings,
        "UPDATE turns SET status = 'running', lease_until = '2999-01-01 00:00:00.000000'"
        " WHERE idempotency_key = 'same'",
    )
    for message in ("hello", "something else"):
        assert bob.send(chat, message, idempotency_key="same").status_code == 404
    mine = bob.new_chat()
    assert bob.send(mine, "my own words", idempotency_key="same").status_code == 200


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
    notes = parts.answering.notes
    with parts.binder.bound(ann_s):
        assert parts.chats.page(ann_s)[0]
        assert notes.all(ann_s)
    with parts.binder.bound(mixed):
        assert parts.chats.page(of_user) == ([], False)
        assert list(parts.chats.search(of_user.within("another-chat"), SECRET, 5)) == []
        assert list(notes.all(mixed)) == []
        assert not notes.remove(mixed, 1)
        for job in (parts.chats.get, parts.chats.transcript, parts.answering.turns.delete_chat):
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
        "%": ["100% sure"],
        "0%": ["100% sure"],
        "_": ["snake_case"],
        "e_c": ["snake_case"],
        "\\": ["back\\slash"],
        "\\s": ["back\\slash"],
        "%%": [],
        "SNAKE_": ["snake_case"],
        "' OR 1=1 --": [],
        "[a-z]": [],
        "*": [],
    }
    found = {}
    for words in wanted:
        page = Page(ann.browser.get("/chat", query_string={"q": words}, headers=PAGE).text)
        found[words] = [span.text for span in page.all("span") if span.attributes.get("class") == "row-title"]
    assert found == wanted
