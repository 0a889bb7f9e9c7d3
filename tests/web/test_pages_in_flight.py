"""Pages under way: how many of a user, and in all. And the rate of new chats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.guardrails import pages
from agentapp.guardrails.seats import PAGE as PAGE_SEAT
from agentapp.guardrails.seats import Seats, key_of, make_memory
from agentapp.isolation import RequestScope
from agentapp.server.limits import PAGE_SLOT
from agentapp.web.hooks import user_scope
from agentapp.web.parts import Parts
from tests.support.server_users import wait_for
from tests.support.users import JSON, PAGE, Person, person, sign_in


class Slow:
    """An app with a page that answers when it is told to."""

    def __init__(self, app: Flask) -> None:
        self.app, self.go_on = app, threading.Event()

        @app.get("/slow")
        def slow() -> str:
            assert user_scope()
            assert self.go_on.wait(20)
            return "done"

    @property
    def parts(self) -> Parts:
        found: Parts = self.app.extensions["agentapp"]
        return found

    @contextmanager
    def asked_by(self, *who: Person) -> Iterator[list[Future[TestResponse]]]:
        """These people have asked for a slow page, each of them with a browser of their own, and wait."""
        self.go_on.clear()
        before = self.parts.pages.taken()
        with ThreadPoolExecutor(len(who)) as pool:
            try:
                asked = [pool.submit(self._ask, one) for one in who]
                wait_for(lambda: self.parts.pages.taken() == before + len(who))
                yield asked
            finally:
                self.go_on.set()

    def _ask(self, who: Person) -> TestResponse:
        browser = self.app.test_client()
        with who.browser.session_transaction() as mine, browser.session_transaction() as new:
            new.update(mine)
        return browser.get("/slow", headers=PAGE)


@pytest.fixture
def make_slow(make_app: Callable[..., Flask], settings: Settings) -> Callable[..., Slow]:
    return lambda **changed: Slow(make_app(wanted=replace(settings, **changed)))


def test_a_user_has_so_many_pages_under_way_and_others_are_not_affected(
    make_slow: Callable[..., Slow],
) -> None:
    slow = make_slow(pages_user=3)
    ann, bob = person(slow.app, "ann"), person(slow.app, "bob")
    with slow.asked_by(ann, ann, ann) as asked:
        for headers in (PAGE, JSON):
            refused = ann.browser.get("/chat", headers=headers)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.headers["X-Content-Type-Options"] == "nosniff"
            assert "No more than 3 of your pages" in refused.text
        assert refused.is_json
        assert (refused.json["code"], refused.json["scope"], refused.json["limit"]) == ("busy", "pages", 3)
        assert bob.get("/chat").status_code == 200
        assert slow.app.test_client().get("/login").status_code == 200
        assert [one.done() for one in asked] == [False] * 3
    assert [one.result().status_code for one in asked] == [200] * 3
    assert slow.parts.pages.taken() == 0
    assert ann.get("/chat").status_code == 200


def test_a_user_has_no_more_pages_with_a_second_login(make_slow: Callable[..., Slow]) -> None:
    slow = make_slow(pages_user=3)
    ann, again = person(slow.app, "ann"), sign_in(slow.app, "ann")
    with slow.asked_by(ann, ann, again):
        refused = again.browser.get("/chat", headers=JSON)
        assert (refused.status_code, refused.json["scope"], refused.json["limit"]) == (503, "pages", 3)


def test_messages_and_streams_are_no_pages(make_slow: Callable[..., Slow]) -> None:
    slow = make_slow(pages_user=3)
    ann = person(slow.app, "ann")
    chat = ann.new_chat()
    turn = ann.ask(chat, "hello")["turn_id"]
    with slow.asked_by(ann, ann, ann):
        again = sign_in(slow.app, "ann")
        assert again.send(chat, "and again").status_code == 200
        assert again.browser.get(f"/chat/{chat}/turns/{turn}/events").status_code == 200


def test_all_pages_of_a_worker_are_limited_but_never_health_checks_files_and_strangers(
    make_slow: Callable[..., Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGES_WORKER", 2)
    slow = make_slow()
    ann, bob = person(slow.app, "ann"), person(slow.app, "bob")
    with slow.asked_by(ann, ann):
        refused = bob.browser.get("/chat", headers=JSON)
        assert (refused.status_code, refused.json["code"], refused.json["scope"]) == (503, "busy", "server")
        for path in ("/livez", "/readyz", "/static/app.js", "/login"):
            with slow.app.test_client().get(path) as answer:
                assert answer.status_code == 200, path
    assert bob.get("/chat").status_code == 200


def test_what_the_server_has_counted_is_not_counted_again(app: Flask, parts: Parts) -> None:
    counted: list[int] = []
    app.before_request(lambda: counted.append(parts.pages.taken()))
    ann = person(app, "ann")
    counted.clear()
    taken = parts.pages.take("somebody")
    ann.browser.get("/chat", environ_base={PAGE_SLOT: taken})
    ann.browser.get("/chat")
    assert counted == [1, 2]
    taken.release()
    refused = ann.browser.get("/chat", headers=JSON, environ_base={PAGE_SLOT: pages._busy("pages", 16)})
    assert (refused.status_code, refused.json["scope"]) == (503, "pages")


@pytest.mark.parametrize("path", ["/chat", "/nowhere", "/login", "/chat/absent-absent-absent", "/broken"])
def test_every_page_gives_its_slot_back_however_it_ends(app: Flask, parts: Parts, path: str) -> None:
    @app.get("/broken")
    def broken() -> str:
        raise ZeroDivisionError

    ann = person(app, "ann")
    ann.get(path)
    app.test_client().get(path)
    ann.browser.post(path)
    assert parts.pages.taken() == 0


def test_pages_in_other_workers_count_too(make_slow: Callable[..., Slow]) -> None:
    slow = make_slow(pages_user=2)
    ann, bob = person(slow.app, "ann"), person(slow.app, "bob")
    memory, elsewhere = make_memory(rows=2, width=8), Seats(1)
    assert elsewhere.join(memory, 1)
    slow.parts.start(threads=8, seats=(memory, 0))
    for _ in range(2):
        elsewhere.take(PAGE_SEAT, key_of("pages", id_of(slow, ann)))
    assert ann.browser.get("/chat", headers=JSON).json["scope"] == "pages"
    assert bob.get("/chat").status_code == 200
    elsewhere.release(8)
    assert ann.get("/chat").status_code == 200


def id_of(slow: Slow, who: Person) -> str:
    with who.browser.session_transaction() as session, slow.parts.binder.bound(RequestScope(request_id="r")):
        user = slow.parts.accounts.user_of(session["_user_id"])
    assert user is not None
    return user.id


def test_a_user_makes_so_many_chats_in_a_time_in_any_login_and_others_are_not_affected(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    limited = replace(settings, rate_chats=(3, 60.0))
    app, second = make_app(wanted=limited), make_app(wanted=limited)
    clock = [1_800_000_000.0]
    for each in (app, second):
        each.extensions["agentapp"].turns.kit.guardrails.clock = lambda: clock[0]
    ann, bob = person(app, "ann"), person(app, "bob")
    for _ in range(3):
        ann.new_chat()
    for who in (ann, sign_in(app, "ann"), sign_in(second, "ann")):
        refused = who.post("/chat", JSON)
        assert (refused.status_code, refused.json["code"], refused.json["scope"]) == (
            429,
            "rate-limited",
            "new-chats",
        )
        assert int(refused.headers["Retry-After"]) == refused.json["retry_after"] > 50
    page = ann.post("/chat", PAGE)
    assert page.status_code == 429
    assert "at most 3 new chats a minute" in page.text
    bob.new_chat()
    clock[0] += 62
    ann.new_chat()


def test_without_a_rate_on_chats_none_is_refused(make_app: Callable[..., Flask], settings: Settings) -> None:
    ann = person(make_app(wanted=replace(settings, rate_chats=None)), "ann")
    for _ in range(130):
        ann.new_chat()
