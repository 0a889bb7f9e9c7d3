"""The guardrails as people meet them: whom they stop, and whom they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.storage.cells import CellRows
from tests.support.users import Person, person, sign_in


def refused(answer: Any) -> tuple[int, str, str]:
    assert int(answer.headers["Retry-After"]) == answer.json["retry_after"] >= 1
    return answer.status_code, answer.json["code"], answer.json["scope"]


def paused_chat(someone: Person) -> str:
    chat = someone.new_chat()
    assert [someone.send(chat, "/fail").status_code for _ in range(3)] == [502] * 3
    return chat


def test_a_paused_chat_stops_neither_its_users_other_chats_nor_anybody_else(ann: Person, bob: Person) -> None:
    chat = paused_chat(ann)
    assert refused(ann.send(chat, "hello")) == (503, "breaker-open", "session")
    assert ann.ask(ann.new_chat(), "hello")["status"] == "completed"
    assert bob.ask(bob.new_chat(), "hello")["status"] == "completed"


def test_a_refused_message_is_not_taken_in(ann: Person) -> None:
    chat = paused_chat(ann)
    before = ann.get(f"/chat/{chat}/export.json").json
    ann.send(chat, "hello")
    assert ann.get(f"/chat/{chat}/export.json").json == before


def test_another_worker_and_a_new_start_know_of_the_pause(
    make_app: Callable[..., Flask], ann: Person
) -> None:
    """Two apps on one database, of which the second has nothing in memory."""
    chat = paused_chat(ann)
    elsewhere = sign_in(make_app(), "ann")
    assert refused(elsewhere.send(chat, "hello")) == (503, "breaker-open", "session")


def test_failures_count_together_whichever_worker_served_them(
    make_app: Callable[..., Flask], ann: Person
) -> None:
    chat, elsewhere = ann.new_chat(), sign_in(make_app(), "ann")
    for one in (ann, elsewhere, ann):
        assert one.send(chat, "/fail").status_code == 502
    assert refused(elsewhere.send(chat, "hello")) == (503, "breaker-open", "session")


def test_a_flood_of_other_chats_does_not_push_a_pause_out_of_memory(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    wanted = replace(settings, registry_cap=4, registry_cleanup_every=1, rate_user=None)
    ann = person(make_app(wanted=wanted), "ann")
    chat = paused_chat(ann)
    for _ in range(10):  # each with a failure to remember: those that have nothing to tell go first anyway
        ann.send(ann.new_chat(), "/fail")
    assert refused(ann.send(chat, "hello")) == (503, "breaker-open", "session")


def test_a_new_chat_is_no_way_around_the_users_limits(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    ann = person(make_app(wanted=replace(settings, rate_user=(3, 60.0))), "ann")
    for _ in range(3):
        ann.ask(ann.new_chat(), "hello")
    assert refused(ann.send(ann.new_chat(), "hello")) == (429, "rate-limited", "user")


def test_a_pause_ends_with_one_try_that_succeeds(app: Flask, ann: Person) -> None:
    chat = paused_chat(ann)
    guardrails = app.extensions["agentapp"].turns.kit.guardrails
    now = guardrails.clock() + 31
    guardrails.clock = lambda: now
    assert ann.ask(chat, "hello")["status"] == "completed"
    assert ann.ask(chat, "and again")["status"] == "completed"


def test_a_used_up_chat_says_what_it_had_and_another_goes_on(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    ann = person(make_app(wanted=replace(settings, session_tokens=100)), "ann")
    chat = ann.new_chat()
    used = ann.ask(chat, "hello")["usage"]
    answer = ann.send(chat, "hello")
    assert refused(answer) == (429, "budget-exhausted", "session")
    assert (answer.json["limit"], answer.json["used"]) == (100, used["input_tokens"] + used["output_tokens"])
    assert ann.ask(ann.new_chat(), "hello")["status"] == "completed"


@pytest.mark.parametrize("step", ["read", "write"])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html"])
def test_if_the_cells_cannot_be_reached_nothing_is_let_in(
    ann: Person, monkeypatch: pytest.MonkeyPatch, step: str, accept: str
) -> None:
    def away(*given: Any) -> Any:
        raise StorageUnavailable("The database cannot be reached right now.")

    chat = ann.new_chat()
    with monkeypatch.context() as patch:
        patch.setattr(CellRows, step, away)
        answer = ann.send(chat, "hello", {"Accept": accept})
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert ann.get(f"/chat/{chat}/export.json").json["turns"] == []
