"""No call is free: what is charged for turns that end before their answer does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentapp.agents.provider import ModelCall, Reply
from agentapp.errors import StorageUnavailable, TurnStopped
from agentapp.events import Usage
from agentapp.isolation import Scope
from agentapp.turns.ends import Settlement
from agentapp.turns.values import Spent
from agentapp.web.parts import Parts
from tests.support.scripted import hands_over
from tests.support.turns import begin, someone
from tests.turns.charging import answered_by, charged, first_call, lose, play_until, says, store_events


@pytest.fixture
def scope(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """Until it is set, the model says nothing."""
    ends = threading.Event()
    yield ends
    ends.set()


@pytest.mark.parametrize("end", ["stop", "delete", "time-out"])
def test_a_call_that_ends_before_its_first_word_costs_its_input(
    parts: Parts, scope: Scope, silence: threading.Event, end: str
) -> None:
    kit = answered_by(parts, says("", silence), first_token=0.3 if end == "time-out" else 20, tick=0.05)
    turn = begin(kit, scope, "Hello there")
    asked = kit.driver._provider.asked  # type: ignore[attr-defined]
    play_until(turn, lambda: bool(asked) and asked[0].meter.usage.model_calls > 0)
    if end == "delete":
        parts.turns.delete_chat(scope)
    if end != "time-out":
        turn.halt(TurnStopped())
    assert turn.finish().usage == Usage(first_call(turn), 0, 1)
    assert charged(parts, scope) == (first_call(turn), 0)
    assert first_call(turn) > 100, "with the instructions and the tools"


def test_a_request_that_was_never_sent_costs_nothing(parts: Parts, scope: Scope) -> None:
    turn = begin(answered_by(parts, "never asked"), scope, "Hello")
    turn.halt(TurnStopped())
    turn.finish()
    assert charged(parts, scope) == (0, 0)


@pytest.mark.parametrize("end", ["stop", "gap", "turn"])
def test_what_came_out_is_counted_by_what_was_heard(
    parts: Parts, scope: Scope, silence: threading.Event, end: str
) -> None:
    """1,500 words and then the deadline were one token."""
    text = "word " * 1_500
    limits = {"gap": {"gap": 0.2}, "turn": {"turn": 0.5}}.get(end, {})
    turn = begin(answered_by(parts, says(text, silence), **limits), scope, "Hello")
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    if end == "stop":
        turn.halt(TurnStopped())
    turn.finish()
    assert charged(parts, scope) == (first_call(turn), len(text) // 4)


def test_a_turn_whose_worker_died_costs_what_was_stored_of_it(
    parts: Parts, scope: Scope, silence: threading.Event
) -> None:
    kit = answered_by(parts, hands_over("maths"), says("word " * 40, silence))
    turn = begin(kit, scope, "Hello")
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    written = store_events(parts, turn)
    assert written > 5
    lose(parts, turn)
    asked = kit.driver._provider.asked  # type: ignore[attr-defined]
    assert len(asked) == 2
    second = asked[1].meter.usage
    assert second == Usage(second.input_tokens, 50, 1)
    assert charged(parts, scope) == (10 + second.input_tokens, 5 + 50)
    with parts.binder.bound(scope):
        (stored,) = parts.chats.transcript(scope).turns
    assert stored.result.usage == Usage(10 + second.input_tokens, 55, 2)
    turn.halt(TurnStopped())
    turn.finish()
    assert charged(parts, scope) == (10 + second.input_tokens, 55), "it was alive, and is not charged twice"


def test_a_turn_whose_worker_died_at_once_costs_its_first_call(parts: Parts, scope: Scope) -> None:
    turn = begin(answered_by(parts, "never asked"), scope, "Hello")
    lose(parts, turn)
    assert charged(parts, scope) == (first_call(turn), 0)


def test_a_call_that_is_about_to_be_made_is_stored_with_its_event(parts: Parts, scope: Scope) -> None:
    """If the worker dies in the next moment, nobody knows if it was made."""
    turn = begin(answered_by(parts, hands_over("maths"), "fine"), scope, "Hello")
    play_until(turn, lambda: [event.kind for event in turn.feed.events].count("agent_thinking") == 2)
    new = turn.unwritten(0)
    assert new is not None
    assert new.spent.usage.model_calls == 2
    assert new.spent.usage.input_tokens > 10 + 50
    turn.finish()


def test_a_turn_is_charged_once_if_only_the_news_of_its_commit_is_lost(
    parts: Parts, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = Settlement.store, list[bool]()

    def commits_and_says_not(self: Settlement) -> bool:
        stored = real(self)
        tries.append(stored)
        if len(tries) == 1:
            raise StorageUnavailable("the connection broke off")
        return stored

    monkeypatch.setattr(Settlement, "store", commits_and_says_not)
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
    assert begin(answered_by(parts, "fine"), scope, "Hello").finish().status == "completed"
    assert tries == [True, True]
    assert charged(parts, scope) == (10, 5)


def test_the_same_holds_if_part_of_its_input_was_cached(
    parts: Parts, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker knows its own turn by what it has used, so that must be stored whole."""
    used = Usage(10, 5, 1, cache_read_tokens=6, cache_write_tokens=2)
    turn = begin(answered_by(parts, Reply("fine", usage=used)), scope, "Hello")
    real = Settlement.store
    monkeypatch.setattr(Settlement, "store", lambda self: real(self) and real(self))
    assert turn.finish().status == "completed"
    with parts.binder.bound(scope):
        (stored,) = parts.chats.transcript(scope).turns
    assert (stored.status, stored.result.usage) == ("completed", used)


def test_what_a_dead_worker_had_read_from_the_cache_is_charged_as_that(
    parts: Parts, scope: Scope, silence: threading.Event
) -> None:
    used = Usage(1_000, 1, 1, cache_read_tokens=800, cache_write_tokens=100)

    def answer(call: ModelCall) -> Iterator[Any]:
        call.meter.sent()
        yield used
        yield "word"
        silence.wait(20)
        yield Reply("word", usage=used)

    turn = begin(answered_by(parts, answer), scope, "Hello")
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    store_events(parts, turn)
    lose(parts, turn)
    assert charged(parts, scope) == (100 + 800 // 10 + 100 * 5 // 4, 1)
    with parts.binder.bound(scope):
        (stored,) = parts.chats.transcript(scope).turns
    assert stored.result.usage == used
    turn.halt(TurnStopped())
    turn.finish()


def test_what_an_older_version_has_stored_as_spent_can_be_read() -> None:
    spent = Spent(Usage(10, 5, 2, 6, 2), 35, 36)
    assert Spent.from_json(json.loads(json.dumps(spent.to_json()))) == spent
    assert Spent.from_json([10, 5, 2, None, 36]) == Spent(Usage(10, 5, 2), None, 36)
    assert spent.to_json()[:5] == [10, 5, 2, 35, 36], "an older version reads these"


def test_estimates_go_by_bytes_of_utf_8(parts: Parts, scope: Scope, silence: threading.Event) -> None:
    plain = begin(answered_by(parts, "x"), scope.within(parts.chats.create(scope).id), "")
    plain.finish()
    turn = begin(answered_by(parts, says("語" * 400, silence)), scope, "漢" * 400)
    assert first_call(turn) - first_call(plain) == 300
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    turn.halt(TurnStopped())
    turn.finish()
    assert charged(parts, scope)[1] == 5 + 300
