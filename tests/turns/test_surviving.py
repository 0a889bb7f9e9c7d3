"""Turns that go on by themselves: who may follow and stop them, what is told of them, what they leave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import Reply
from agentapp.app import deadlines_of
from agentapp.config import Settings
from agentapp.errors import LoginRequired, NotFound, ProviderGarbled, TurnInterrupted, TurnStopped
from agentapp.guardrails.cell import Cell
from agentapp.guardrails.seats import FOLLOWER, key_of
from agentapp.isolation import Scope
from agentapp.turns.feed import NumberedEvent, Subscription
from agentapp.turns.service import TurnService
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from agentapp.web.sse import RECONNECT_LATER, EventStream
from tests.support.app_inspection import sql
from tests.support.scripted import SPENT, Scripted, calls, hands_over
from tests.support.server_users import wait_for
from tests.support.turns import hurry, someone

PASSWORD = "a long enough password"
TIMEOUT_SECONDS = 20.0


@pytest.fixture
def uma(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def stage(parts: Parts) -> Callable[..., TurnService]:
    """The app's own, with a scripted model."""
    return lambda *answers: staged(parts, Scripted(*answers))


def staged(parts: Parts, model: Scripted) -> TurnService:
    driver = ThreadedDriver(model, parts.binder, deadlines_of(parts.settings))
    return replace(parts.turns, kit=replace(parts.turns.kit, driver=driver))


@pytest.fixture
def halves(parts: Parts) -> Iterator[Callable[[Any], Iterator[str | Reply]]]:
    """A model that says one half, and the other when ``go_on`` is set, if not before, at the test's end."""
    go_on = threading.Event()

    def says(call: Any) -> Iterator[str | Reply]:
        yield "One half"
        go_on.wait(TIMEOUT_SECONDS)
        yield ", and the other"
        yield Reply("One half, and the other", usage=SPENT)

    says.go_on = go_on  # type: ignore[attr-defined]
    yield says
    go_on.set()


@pytest.fixture
def quick(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat never sleeps long."""
    hurry(monkeypatch, parts, seconds=0.01)


def heard(
    follower: Subscription, last: Callable[[NumberedEvent], bool] = lambda event: False
) -> list[NumberedEvent]:
    """The events up to such a one, or to the end."""
    found: list[NumberedEvent] = []
    ends = time.monotonic() + TIMEOUT_SECONDS
    for event in follower:
        assert time.monotonic() < ends, found
        if event is not None:
            found.append(event)
            if last(event):
                break
    return found


def is_text(event: NumberedEvent) -> bool:
    return event.kind == "text"


def half_way(
    stage: TurnService, scope: Scope, sent: str | NewMessage = "Hello", token: str | None = None
) -> Subscription:
    """A turn whose model has said one half."""
    follower = stage.send(scope, sent if isinstance(sent, NewMessage) else NewMessage(sent), token)
    heard(follower, is_text)
    return follower


def ended(follower: Subscription) -> dict[str, Any]:
    try:
        end = follower.finish(TIMEOUT_SECONDS)
    finally:
        follower.close()
    assert end is not None
    return end.data


def cell_of(parts: Parts, scope: Scope) -> Cell:
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(scope):
        found: Cell = guardrails.registry.get(guardrails.keys(scope)[0])
    return found


def test_a_reader_who_leaves_in_the_middle_does_not_end_the_turn(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    follower = half_way(stage(halves), uma)
    follower.close()
    halves.go_on.set()
    with parts.binder.bound(uma):
        again = parts.turns.follow(uma, follower.feed.turn_id)
    end = ended(again)
    assert (end["status"], end["reply"]) == ("completed", "One half, and the other")


def test_a_stopped_answer_keeps_what_had_been_said(parts: Parts, uma: Scope, stage: Any, halves: Any) -> None:
    """And the next message goes on from there."""
    follower = half_way(stage(halves), uma)
    with parts.binder.bound(uma):
        stopping = parts.turns.stop(uma, follower.feed.turn_id)
    end = ended(stopping)
    follower.close()
    with parts.binder.bound(uma):
        (turn,), (asked, said) = (whole := parts.chats.transcript(uma)).turns, whole.messages
    assert (end["status"], end["reply"], "error" in end) == ("stopped", "One half", False)
    assert (turn.status, asked.content, said.content) == ("stopped", "Hello", "One half")
    model = Scripted("Yes")
    assert ended(staged(parts, model).send(uma, NewMessage("Go on")))["reply"] == "Yes"
    said_before = [text for message in model.asked[0].messages for text in message.texts]
    assert said_before[:2] == ["Hello", "One half"]


def test_stopping_is_nobodys_failure_however_often(parts: Parts, uma: Scope, stage: Any, halves: Any) -> None:
    for _ in range(parts.settings.breaker_failures):
        follower = half_way(stage(halves), uma)
        assert parts.turns.local.stop(follower.feed.turn_id)
        assert ended(follower)["status"] == "stopped"
    assert cell_of(parts, uma).breaker.failures == 0
    assert ended(stage("fine").send(uma, NewMessage("Once more")))["status"] == "completed"


def test_nobody_else_can_follow_or_stop_a_turn_that_runs_here(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    """Neither somebody else, nor its owner in another chat."""
    follower = half_way(stage(halves), uma)
    turn_id = follower.feed.turn_id
    vic = someone(parts, "vic")
    for scope in (vic, vic.within(uma.session_id), uma.within(parts.chats.create(uma).id)):
        with parts.binder.bound(scope):
            for job in (parts.turns.follow, parts.turns.stop):
                with pytest.raises(NotFound):
                    job(scope, turn_id)
    assert parts.turns.slots.taken() == 1
    halves.go_on.set()
    assert ended(follower)["status"] == "completed"


def test_a_stream_that_gives_way_is_told_to_come_back_and_its_turn_goes_on(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    sent = half_way(stage(halves), uma)
    with parts.binder.bound(uma):
        most = parts.settings.streams_user or 0
        streams = [EventStream(parts.turns.follow(uma, sent.feed.turn_id)) for _ in range(most)]
    told = b"".join(streams[0])
    assert told.endswith(RECONNECT_LATER)
    assert told.count(b"retry:") == 1
    assert b"turn_completed" not in told
    halves.go_on.set()
    for stream in streams[1:]:
        rest = b"".join(stream)
        assert b"turn_completed" in rest
        assert b"retry:" not in rest
    assert ended(sent)["status"] == "completed"
    for stream in streams:
        stream.close()
    assert parts.turns.slots.taken() == 0


def test_a_stream_that_another_worker_displaced_is_ended_by_the_heartbeat(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    sent = half_way(stage(halves), uma)
    with parts.binder.bound(uma):
        follower = parts.turns.follow(uma, sent.feed.turn_id)
    (seat,) = [seat for seat in parts.seats.seats_of(key_of("streams", uma.user_id)) if seat.kind == FOLLOWER]
    parts.seats.displace(seat)
    wait_for(lambda: follower.is_cut, 4)
    assert b"".join(EventStream(follower)).endswith(RECONNECT_LATER)
    follower.close()
    halves.go_on.set()
    assert ended(sent)["status"] == "completed"


def test_a_stream_taken_up_again_goes_on_with_the_next_event_and_its_number(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    first = stage(halves).send(uma, NewMessage("Hello"))
    events = heard(first, is_text)
    with parts.binder.bound(uma):
        second = parts.turns.follow(uma, first.feed.turn_id, after=2)
    assert heard(second, is_text) == events[2:]
    halves.go_on.set()
    events += heard(first)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    second.close()
    first.close()
    for number in range(len(events) + 1):
        with parts.binder.bound(uma):
            again = parts.turns.follow(uma, first.feed.turn_id, after=number)
        assert heard(again) == events[number:]
        again.close()


def test_the_same_key_while_the_turn_runs_is_that_turn(
    parts: Parts, uma: Scope, stage: Any, halves: Any
) -> None:
    model = Scripted(halves)
    first = half_way(staged(parts, model), uma, NewMessage("Hello", "key"))
    with parts.binder.bound(uma):
        again = staged(parts, model).send(uma, NewMessage("Hello", "key"))
    assert again.feed is first.feed
    halves.go_on.set()
    assert ended(again) == ended(first)
    assert len(model.asked) == 1
    with parts.binder.bound(uma):
        assert len(parts.chats.transcript(uma).turns) == 1


def test_another_version_is_asked_for_without_the_one_it_replaces(
    parts: Parts, uma: Scope, stage: Any
) -> None:
    ids = [
        ended(stage("So.").send(uma, NewMessage(text)))["turn_id"] for text in ("Before", "Hello", "After")
    ]
    for sent, text in (
        (NewMessage(None, replaces=ids[1]), "Hello"),
        (NewMessage("Hullo", replaces=ids[1]), "Hullo"),
    ):
        model = Scripted("Otherwise.")
        end = ended(staged(parts, model).send(uma, sent))
        (call,) = model.asked
        assert [text for message in call.messages for text in message.texts] == ["Before", "So.", text]
        with parts.binder.bound(uma):
            turns = parts.chats.transcript(uma).turns
        assert (turns[-1].id, turns[-1].follows) == (end["turn_id"], 1)


def completes(turn: Any, halves: Any) -> None:
    halves.go_on.set()


def is_stopped(turn: Any, halves: Any) -> None:
    turn.halt(TurnStopped())


def is_interrupted(turn: Any, halves: Any) -> None:
    turn.halt(TurnInterrupted())


def fails(turn: Any, halves: Any) -> None:
    turn.halt(ProviderGarbled("x"))


@pytest.mark.parametrize("ends", [completes, is_stopped, is_interrupted, fails])
def test_what_is_kept_of_a_running_turn_goes_when_it_ends(
    parts: Parts, settings: Settings, uma: Scope, stage: Any, halves: Any, quick: None, ends: Any
) -> None:
    follower = half_way(stage(halves), uma)
    wait_for(lambda: sql(settings, "SELECT count(*) FROM turn_events") != [(0,)])
    assert sql(settings, "SELECT count(*) FROM live_turns") == [(1,)]
    (played,) = parts.turns.local.all()
    ends(played.turn, halves)
    ended(follower)
    for table in ("live_turns", "turn_events"):
        assert sql(settings, f"SELECT count(*) FROM {table}") == [(0,)], table
    now = parts.turns.kit.guardrails.clock()
    assert cell_of(parts, uma).budget.holds.amount(now) == 0


def test_a_stream_ends_with_its_login_and_the_turn_goes_on(
    parts: Parts, uma: Scope, stage: Any, halves: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parts.binder.bound(uma):
        _, token = parts.accounts.sign_in("uma", PASSWORD)
        _, other = parts.accounts.sign_in("uma", PASSWORD)
    looks, real = [0], parts.accounts.signed_in

    def look(tokens: Any) -> set[str]:
        looks[0] += 1
        return real(tokens)

    monkeypatch.setattr(parts.accounts, "signed_in", look)
    follower = half_way(stage(halves), uma, token=token)
    with parts.binder.bound(uma):
        elsewhere = parts.turns.follow(uma, follower.feed.turn_id, login=other)
    parts.accounts.sign_out(token)
    before = looks[0]
    wait_for(lambda: looks[0] >= before + 3)  # the second of them began after it, and is over
    with pytest.raises(LoginRequired):
        follower.next_within(0)
    follower.close()
    halves.go_on.set()
    assert ended(elsewhere)["reply"] == "One half, and the other"


def test_a_worker_that_must_end_interrupts_what_still_runs_and_tells_of_it(
    parts: Parts, uma: Scope, stage: Any, halves: Any, quick: None
) -> None:
    follower = half_way(stage(halves), uma)
    (played,) = parts.turns.local.all()
    parts.drain(0.05)
    wait_for(lambda: parts.drain(0.05))
    wait_for(played.turn._halted.done, seconds=2)
    assert played.turn._halted.done()
    end = ended(follower)
    assert (end["status"], end["reply"]) == ("interrupted", "One half")


@pytest.mark.parametrize(
    "answer",
    [
        calls(("calculate", {"expression": float("nan")})),
        calls(("calculate", [float("-inf"), "\ud800", "a\0b"])),
        hands_over("maths", n=float("inf"), s="\ud800 \0"),
    ],
    ids=["a call", "an odd call", "a handover"],
)
def test_whatever_a_model_gives_a_tool_or_a_colleague_can_be_kept_and_told(
    database_url: str, make_app: Any, settings: Settings, answer: Reply
) -> None:
    parts: Parts = make_app(wanted=replace(settings, database_url=database_url)).extensions["agentapp"]
    scope = someone(parts, "uma")
    follower = staged(parts, Scripted(answer, "Done")).send(scope, NewMessage("Hello"))
    events = heard(follower)
    follower.close()
    assert (events[-1].data["status"], events[-1].data["reply"]) == ("completed", "Done")
    json.dumps([event.data for event in events], allow_nan=False)  # a browser knows no such numbers
    with parts.binder.bound(scope):
        again = parts.turns.follow(scope, events[0].data["turn_id"])
    assert heard(again) == events
    again.close()
