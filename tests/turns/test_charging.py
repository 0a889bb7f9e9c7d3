"""No call is free: what is charged for turns that end before their answer does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from agentapp.agents.drivers.shared import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.prices import Prices
from agentapp.agents.provider import ModelCall, Reply
from agentapp.errors import StorageUnavailable, TurnStopped
from agentapp.events import Usage
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import Scope
from agentapp.storage.models import LiveTurn
from agentapp.storage.values import utc_now
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.turn import Turn, TurnKit
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted, hands_over
from tests.support.turns import begin, someone

OF_INPUT = 3_000  # millionths of a dollar for a token in; a token out costs one


@pytest.fixture
def scope(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """Until it is set, the model says nothing."""
    ends = threading.Event()
    yield ends
    ends.set()


def answered_by(parts: Parts, *answers: Any, **deadlines: float) -> TurnKit:
    driver = ThreadedDriver(Scripted(*answers), parts.binder, Deadlines(**deadlines))
    return replace(parts.turns.kit, driver=driver, prices=Prices([("m", OF_INPUT, 1.0)]), model="m")


def charged(parts: Parts, scope: Scope) -> tuple[int, int]:
    """Tokens in and out that the user and the tenant were charged. Nothing may be reserved any more."""
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(scope):
        cells = TurnCells(*guardrails.registry.look(guardrails.keys(scope)))
    now = guardrails.clock()
    assert [cell.budget.holds.amount(now) for cell in cells[:3]] == [0, 0, 0]
    assert cells.user.budget.used(now) == cells.tenant.budget.used(now)
    return divmod(cells.tenant.budget.used(now), OF_INPUT)


def says(text: str, silence: threading.Event) -> Callable[[ModelCall], Iterator[Any]]:
    """A model that receives the request, says this and then nothing."""

    def answer(call: ModelCall) -> Iterator[Any]:
        call.meter.sent()
        yield text
        silence.wait(20)
        yield Reply(text, usage=Usage(1, 1, 1))

    return answer


def play_until(turn: Turn, seen: Callable[[], bool]) -> None:
    while not seen():
        next(turn)


def lose(parts: Parts, turn: Turn) -> None:
    """As if the turn's worker had died a while ago, and another one came to it."""
    with parts.db.writing() as db:
        past = utc_now() - timedelta(seconds=1)
        db.execute(update(LiveTurn).where(LiveTurn.turn_id == turn.id).values(lease_until=past))
    kit = parts.turns.kit
    interrupt_abandoned(kit.store, kit.guardrails, turn.scope, kit.leases.current())


def store_events(parts: Parts, turn: Turn, written: int = 0) -> int:
    """As the heartbeat does. How many are stored then."""
    new = turn.unwritten(written)
    assert new is not None
    parts.turns.live.write([new], parts.turns.kit.leases.current(), renew=False)
    turn.stored_spent = new.spent
    return written + len(new.events)


def first_call(turn: Turn) -> int:
    return turn._started.reservation.first_call_tokens


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
    real, tries = Turn._store, list[bool]()

    def commits_and_says_not(self: Turn, *args: Any, again: bool = False) -> bool:
        stored = real(self, *args, again=again)
        tries.append(stored)
        if len(tries) == 1:
            raise StorageUnavailable("the connection broke off")
        return stored

    monkeypatch.setattr(Turn, "_store", commits_and_says_not)
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
    assert begin(answered_by(parts, "fine"), scope, "Hello").finish().status == "completed"
    assert tries == [True, True]
    assert charged(parts, scope) == (10, 5)


def test_estimates_go_by_bytes_of_utf_8(parts: Parts, scope: Scope, silence: threading.Event) -> None:
    plain = begin(answered_by(parts, "x"), scope.within(parts.chats.create(scope).id), "")
    plain.finish()
    turn = begin(answered_by(parts, says("語" * 400, silence)), scope, "漢" * 400)
    assert first_call(turn) - first_call(plain) == 300
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    turn.halt(TurnStopped())
    turn.finish()
    assert charged(parts, scope)[1] == 5 + 300
