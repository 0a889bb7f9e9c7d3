"""A long chat in pages: what each shows, where it leads, what it costs; and the HTML that is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, event, text

from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.isolation import Scope
from agentapp.web import markdown
from agentapp.web.parts import Parts
from tests.support.long_chats import add_turns, scope_of, straight
from tests.support.statements import statements_noted
from tests.support.users import EVENTS, PAGE, Person, events_of, person

LONG = 70


def long_chat(parts: Parts, who: Person, follows: Any = None, reply: str = "") -> tuple[str, list[str]]:
    """The address of a chat and the ids of its turns: 70 in a row if nothing else is said."""
    chat = who.new_chat()
    ids = add_turns(parts.db, scope_of(parts.db, chat), straight(LONG) if follows is None else follows, reply)
    return f"/chat/{chat}", ids


def asked(page: str) -> list[int]:
    """The numbers of the questions that a page shows."""
    return [int(number) for number in re.findall(r'<div class="bubble">Question (\d+)\.</div>', page)]


def links(page: str) -> dict[str, str]:
    """The links to other pages, by their first word."""
    found = re.findall(r'<a class="button" href="([^"]+)">(.*?)</a>', page, re.S)
    words = [(re.sub("<.*?>", "", label), unescape(address)) for address, label in found]
    return {label.split()[0]: address for label, address in words if label.endswith(" messages")}


def test_a_long_chat_is_read_from_end_to_beginning_and_back_by_plain_links(parts: Parts, ann: Person) -> None:
    address, ids = long_chat(parts, ann)
    page = ann.get(address).text
    assert asked(page) == [*range(41, 71)]
    assert links(page).keys() == {"Earlier"}
    page = ann.get(links(page)["Earlier"]).text
    assert asked(page) == [*range(11, 41)]
    assert f'name="after" value="{ids[-1]}"' in page, "what is sent from here goes to the end of the branch"
    first = ann.get(links(page)["Earlier"]).text
    assert asked(first) == [*range(1, 11)]
    assert links(first).keys() == {"Later", "Newest"}
    later = ann.get(links(first)["Later"]).text
    assert asked(later) == [*range(11, 41)]
    assert asked(ann.get(links(later)["Later"]).text) == [*range(41, 71)]
    assert asked(ann.get(links(first)["Newest"]).text) == [*range(41, 71)]
    assert asked(ann.get(f"{address}?before={ids[5]}").text) == [1, 2, 3, 4, 5], "and without a version"
    assert ann.get(f"{address}?before={ids[0]}").status_code == 404
    assert ann.get(f"{address}?before={'a' * 65}").status_code == 400
    assert ann.get(f"{address}?before=%00").status_code == 400
    exported = ann.get(f"{address}/export.md").text
    assert len(re.findall(r"Answer \d+\.", exported)) == LONG, "an export is whole"


def test_only_the_end_of_a_branch_can_be_regenerated(parts: Parts, ann: Person) -> None:
    address, ids = long_chat(parts, ann)
    assert "Regenerate" in ann.get(address).text
    earlier = ann.get(f"{address}?before={ids[40]}").text.split("<template", 1)[0]
    assert "Regenerate" not in earlier
    assert 'id="latest"' not in earlier


def test_versions_and_editing_work_on_every_page(parts: Parts, ann: Person) -> None:
    """Turn 71 is another version of turn 5; the old one has 65 turns after it."""
    address, ids = long_chat(parts, ann, [*straight(LONG), 4])
    page = ann.get(address).text
    assert asked(page) == [1, 2, 3, 4, 71]
    assert "2 of 2" in page
    assert f"?version={ids[4]}#turn-{ids[4]}" in page
    old = ann.get(f"{address}?version={ids[4]}").text
    assert asked(old) == [*range(5, 35)]
    assert "1 of 2" in old
    assert f'name="after" value="{ids[69]}"' in old
    assert asked(ann.get(links(old)["Newest"]).text) == [*range(41, 71)]
    assert asked(ann.get(links(old)["Earlier"]).text) == [1, 2, 3, 4]
    editing = ann.get(f"{address}?version={ids[69]}&edit={ids[4]}").text
    assert asked(editing) == [*range(41, 71)]
    assert ">Question 5.</textarea>" in editing, "also a message of another page"
    assert f'name="replaces" value="{ids[4]}"' in editing
    assert asked(ann.get(f"{address}?edit={ids[4]}").text) == [*range(5, 35)]


def test_a_message_refused_on_an_earlier_page_is_shown_again_with_the_end_of_its_branch(
    parts: Parts, ann: Person
) -> None:
    address, ids = long_chat(parts, ann, [*straight(LONG), 4])
    chat = address.rsplit("/", 1)[1]
    answer = ann.send(chat, " ", PAGE, after=ids[69])
    assert answer.status_code == 422
    assert asked(answer.text) == [*range(41, 71)]
    answer = ann.send(chat, " ", PAGE, replaces=ids[9])
    assert asked(answer.text) == [*range(10, 40)]
    assert f'name="replaces" value="{ids[9]}"' in answer.text
    for bad in ("nothing-like-it", "\0", "a" * 100):
        answer = ann.send(chat, " ", PAGE, after=bad, replaces=bad)
        assert (answer.status_code, asked(answer.text)[-1]) == (422, 71)


def test_a_turn_that_runs_on_a_later_page_is_a_link_away(parts: Parts, ann: Person) -> None:
    address, ids = long_chat(parts, ann)
    with parts.db.writing() as db:
        db.connection().execution_options(agentapp_migrates=True).execute(
            text(f"UPDATE turns SET status = 'running' WHERE id = '{ids[-1]}'")
        )
    earlier = ann.get(f"{address}?before={ids[40]}&version={ids[-1]}").text
    assert "An answer is being written at the end of this chat." in earlier
    assert f"?version={ids[-1]}#turn-{ids[-1]}" in earlier
    assert f"/turns/{ids[-1]}/stop" in earlier
    assert "is being written" not in ann.get(address).text


@contextmanager
def work(app: Flask) -> Iterator[Callable[[], tuple[int, int]]]:
    """What the database does meanwhile: on SQLite the instructions of its machine, on PostgreSQL the rows
    that it returns; and the number of statements.
    """
    engine: Engine = app.extensions["agentapp"].db.engine
    done, statements = [0], [0]

    def step() -> None:
        done[0] += 1

    def watch(connection: Any, record: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.set_progress_handler(step, 1)

    def count_rows(conn: Any, cursor: Any, *rest: Any) -> None:
        done[0] += max(0, cursor.rowcount) if engine.dialect.name != "sqlite" else 0

    def count(statement: str, parameters: Any) -> None:
        statements[0] += 1

    app.extensions["agentapp"].db.close()  # so that all connections are opened anew
    event.listen(engine, "connect", watch)
    event.listen(engine, "after_cursor_execute", count_rows)
    try:
        with statements_noted(count):
            yield lambda: (done[0], statements[0])
    finally:
        event.remove(engine, "connect", watch)
        app.extensions["agentapp"].db.close()
        event.remove(engine, "after_cursor_execute", count_rows)


def test_a_page_costs_the_same_however_long_the_chat_is(
    make_app: Callable[..., Flask], settings: Settings, database_url: str
) -> None:
    app = make_app(wanted=replace(settings, database_url=database_url))
    parts, ann = app.extensions["agentapp"], person(app, "ann")

    def cost(follows: Any, query: str = "") -> tuple[int, int]:
        address, ids = long_chat(parts, ann, follows)
        named = query.format(*ids)
        assert ann.get(address + named).status_code == 200  # which keeps the HTML
        with work(app) as done:
            assert ann.get(address + named).status_code == 200
            return done()

    short, statements = cost(straight(45))
    retried = [*straight(60), *[59] * 300]
    for follows, query, counted in (
        (straight(500), "", 0),
        (straight(500), "?before={300}&version={499}", 0),
        (retried, "", 300),
        (retried, "?version={100}", 300),
    ):
        more, more_statements = cost(follows, query)
        assert more < short * 1.5 + 70 * counted  # to count a version takes some instructions, and no row
        assert more_statements <= statements + 4


@contextmanager
def rendering(monkeypatch: pytest.MonkeyPatch, parts: Parts) -> Iterator[list[str]]:
    """The texts that are rendered meanwhile. Each must be while nothing of the database is held."""
    texts: list[str] = []
    render = markdown.render

    def watched(text: str) -> Any:
        texts.append(text)
        assert not parts.db._readers.registry.has()
        with parts.db.writing():
            pass  # a thread that is writing already would wait here until it gives up
        return render(text)

    with monkeypatch.context() as patch:
        patch.setattr(markdown, "render", watched)
        patch.setattr("agentapp.storage.db.QUEUE_WAIT_SECONDS", 1.0)
        yield texts


def test_a_reply_is_rendered_once_whoever_reads_it(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ann.new_chat()
    with rendering(monkeypatch, parts) as texts:
        told = ann.stream(chat, "say **it**")[-1]
        for _ in range(2):
            assert told["html"] in ann.get(f"/chat/{chat}").text
            answer = ann.browser.get(f"/chat/{chat}/turns/{told['turn_id']}/events", headers=EVENTS)
            assert events_of(answer.text)[-1]["html"] == told["html"]
    assert texts == [told["reply"]]


def test_html_of_another_renderer_is_made_anew_and_kept(
    make_app: Callable[..., Flask],
    settings: Settings,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = make_app(wanted=replace(settings, database_url=database_url))
    parts, ann = app.extensions["agentapp"], person(app, "ann")
    address, _ = long_chat(parts, ann, straight(3))  # as from before HTML was kept
    with rendering(monkeypatch, parts) as texts:
        pages = [body_of(ann.get(address).text) for _ in range(2)]
    assert texts == ["Answer 1.", "Answer 2.", "Answer 3."]
    assert pages[0] == pages[1]
    assert "<p>Answer 3.</p>" in pages[1]
    monkeypatch.setattr(markdown, "RENDERER", "one that is safer")
    monkeypatch.setattr(markdown, "render", lambda text: "<p>made anew</p>")
    with rendering(monkeypatch, parts) as texts:
        assert all(ann.get(address).text.count("<p>made anew</p>") == 3 for _ in range(2))
    assert len(texts) == 3


def test_html_that_cannot_be_kept_is_shown_all_the_same(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(scope: Scope, rendered: Any) -> None:
        raise StorageUnavailable("The disk is full.")

    address, _ = long_chat(parts, ann, straight(2))
    monkeypatch.setattr("agentapp.storage.branches.Branches.keep_html", lambda self, *given: fail(*given))
    assert "<p>Answer 2.</p>" in ann.get(address).text
    assert "could not be kept: The disk is full." in caplog.text


def test_a_reply_that_cannot_be_rendered_is_stored_all_the_same(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(markdown, "render", fail)
        chat = ann.new_chat()
        answer = ann.ask(chat, "hello")
    assert answer["status"] == "completed"
    assert "could not be rendered" in caplog.text
    assert "hello" in body_of(ann.get(f"/chat/{chat}").text)


def body_of(page: str) -> str:
    return "".join(re.findall(r'<div class="body prose">(.*?)</div>', page, re.S))
