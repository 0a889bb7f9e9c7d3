"""What is charged for a turn that is ended by others: all of it, and once, whoever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from agentapp.agents.provider import ModelCall, Reply
from agentapp.config import Settings
from agentapp.errors import StorageUnavailable, TurnStopped
from agentapp.events import Usage
from agentapp.guardrails.changes import Settled
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import RequestScope, Scope
from agentapp.storage.models import ChargedTurn, LiveTurn
from agentapp.storage.models import Turn as TurnRow
from agentapp.storage.owned import owned_by
from agentapp.turns import jobs
from agentapp.turns.ends import Settlement
from agentapp.turns.heartbeat import Job
from agentapp.turns.jobs import InterruptAbandonedTurns, WriteEvents
from agentapp.turns.kit import TurnKit
from agentapp.turns.live_bus import NoLiveBus
from agentapp.turns.local import LocalTurn, LocalTurns
from agentapp.turns.turn import Turn
from agentapp.web.parts import Parts
from tests.support.databases import only_postgresql
from tests.support.scripted import hands_over
from tests.support.statements import statements_noted
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, begin, someone
from tests.support.users import without_limits
from tests.turns.charging import answered_by, charged, lose, play_until, says, store_events

End = Callable[[Parts, Turn], None]


@pytest.fixture
def parts(database_url: str, settings: Settings, make_app: Any) -> Parts:
    found: Parts = make_app(wanted=without_limits(replace(settings, database_url=database_url))).extensions[
        "agentapp"
    ]
    return found


@pytest.fixture
def scope(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """Until it is set, the model says nothing."""
    ends = threading.Event()
    yield ends
    ends.set()


def delete(parts: Parts, turn: Turn) -> None:
    parts.turns.delete_chat(turn.scope)


def beat(parts: Parts, job: Job) -> None:
    with parts.binder.bound(RequestScope(request_id="heartbeat")):
        job.run(1000.0)


ENDS = pytest.mark.parametrize("end", [delete, lose])


class ThinksOfATool:
    """A model that says what it was asked, and then writes the input of a tool: nothing of it is shown."""

    def __init__(self) -> None:
        self.more, self.silence = threading.Event(), threading.Event()
        self.call: ModelCall | None = None

    def __call__(self, call: ModelCall) -> Iterator[Any]:
        self.call = call
        call.meter.sent()
        yield ""
        assert self.more.wait(20)
        yield Usage(500, 1, 1)
        call.meter.heard("x" * 2_000)
        yield ""
        self.silence.wait(20)
        yield Reply("", usage=Usage(500, 500, 1))

    @property
    def usage(self) -> Usage:
        return self.call.meter.usage if self.call else Usage()


def test_what_is_not_shown_is_charged_though_the_worker_dies(parts: Parts, scope: Scope) -> None:
    """Neither the input of a tool nor the provider's own count of what it took in makes an event."""
    models = [ThinksOfATool() for _ in range(3)]
    chats = [scope, *(scope.within(parts.chats.create(scope).id) for _ in models[1:])]
    local, wrote = LocalTurns(parts.binder), list[str]()
    job = WriteEvents(parts.turns.live, local, parts.turns.kit.leases, NoLiveBus())

    def note(statement: str, parameters: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            wrote.append(" ".join(statement.split()[:2]))

    turns: list[Turn] = []
    for chat, model in zip(chats, models, strict=True):
        turn: Turn = begin(answered_by(parts, model, tick=0.05), chat, "Hello")
        play_until(turn, lambda model=model: model.usage.model_calls > 0)  # type: ignore[misc]
        local._turns[turn.id] = LocalTurn(turn)
        turns.append(turn)
    beat(parts, job)
    for model in models:
        model.more.set()
    for turn, model in zip(turns, models, strict=True):
        play_until(turn, lambda model=model: model.usage == Usage(500, 500, 1))  # type: ignore[misc]
    with statements_noted(note, parts.db):
        beat(parts, job)
        assert wrote == ["INSERT INTO"], "one statement for all of them"
        beat(parts, job)
        assert len(wrote) == 1, "and none when nothing has changed"
    for turn in turns:
        lose(parts, turn)
    assert charged(parts, scope) == (3 * 500, 3 * 500)
    for turn, model in zip(turns, models, strict=True):
        turn.halt(TurnStopped())
        turn.finish()
        model.silence.set()
    assert charged(parts, scope) == (3 * 500, 3 * 500), "they were alive, and are not charged twice"


def begun(parts: Parts, scope: Scope, silence: threading.Event) -> tuple[TurnKit, Turn]:
    """A turn in its second model call, which has said something."""
    kit = answered_by(parts, hands_over("maths"), says("word " * 40, silence))
    turn: Turn = begin(kit, scope, "Hello")
    play_until(turn, lambda: any(event.kind == "text" for event in turn.feed.events))
    return kit, turn


def finish(turn: Turn) -> tuple[int, int]:
    """What it has spent in truth."""
    turn.halt(TurnStopped())
    usage = turn.finish().usage
    assert usage.output_tokens == 55
    return usage.input_tokens, usage.output_tokens


def left(parts: Parts, scope: Scope) -> list[str]:
    with parts.db.writing() as db:
        return list(db.scalars(select(ChargedTurn.turn_id).where(owned_by(scope, ChargedTurn))))


@ENDS
@pytest.mark.parametrize("stored", [True, False])
def test_a_turn_that_others_end_costs_what_it_spent(
    parts: Parts, scope: Scope, silence: threading.Event, end: End, stored: bool
) -> None:
    """Whether or not the heartbeat has come to know that its commit worked."""
    _, turn = begun(parts, scope, silence)
    if stored:
        store_events(parts, turn)
    end(parts, turn)
    assert left(parts, scope) == [turn.id]
    assert finish(turn) == charged(parts, scope)
    assert left(parts, scope) == []


@only_postgresql
@ENDS
def test_what_the_heartbeat_stores_while_others_wait_for_the_cells_is_charged(
    parts: Parts, scope: Scope, silence: threading.Event, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends the turn has read what was stored, and then waits for rows that other turns have locked."""
    _, turn = begun(parts, scope, silence)
    settle = Guardrails.settle

    def store_more() -> None:
        with parts.binder.bound(RequestScope(request_id="heartbeat")):
            store_events(parts, turn)

    def settle_late(*args: Any) -> Settled:
        heartbeat = threading.Thread(target=store_more)
        heartbeat.start()
        heartbeat.join()
        return settle(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Guardrails, "settle", settle_late)
        end(parts, turn)
    assert finish(turn) == charged(parts, scope)


def loses_news_of_commit(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> list[bool]:
    """The first commit of a turn's end works, but its connection breaks off."""
    store, tries = Settlement.store, list[bool]()

    def lost(self: Settlement) -> bool:
        tries.append(store(self))
        if len(tries) == 1:
            meanwhile()
            raise StorageUnavailable("the connection broke off")
        return tries[-1]

    monkeypatch.setattr(Settlement, "store", lost)
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
    return tries


def test_a_turn_whose_chat_is_deleted_before_it_is_known_to_be_stored_is_charged_once(
    parts: Parts, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn: Turn = begin(answered_by(parts, "fine"), scope, "Hello")
    tries = loses_news_of_commit(monkeypatch, lambda: parts.turns.delete_chat(scope))
    turn.finish()
    assert tries == [True, False]
    assert charged(parts, scope) == (10, 5)


@ENDS
def test_the_rest_is_charged_once_if_only_the_news_of_its_commit_is_lost(
    parts: Parts, scope: Scope, silence: threading.Event, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, turn = begun(parts, scope, silence)
    end(parts, turn)
    tries = loses_news_of_commit(monkeypatch, lambda: None)
    assert finish(turn) == charged(parts, scope)
    assert tries == [False, False]


def test_what_was_charged_is_not_kept_for_ever_for_workers_that_are_dead(parts: Parts, scope: Scope) -> None:
    kit = answered_by(parts, "never asked")
    dead: Turn = begin(kit, scope, "Hello")
    lose(parts, dead)
    with parts.db.writing() as db:
        long_ago = utc_now() - timedelta(days=2)
        db.execute(update(ChargedTurn).where(owned_by(scope, ChargedTurn)).values(charged_at=long_ago))
    next_one: Turn = begin(kit, scope, "Hello again")
    assert left(parts, scope) == [dead.id]
    lose(parts, next_one)
    assert left(parts, scope) == [next_one.id]


@pytest.mark.parametrize("trouble", ["unreadable", "storage"])
def test_a_chat_that_fails_does_not_keep_the_turns_of_others_from_being_settled(
    parts: Parts,
    scope: Scope,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    kit, live = answered_by(parts, "never asked"), parts.turns.live
    chats = [scope.within(parts.chats.create(scope).id) for _ in range(4)]
    turns: list[Turn] = [begin(kit, chat, "Hello") for chat in chats]
    bad, good = chats[:2], chats[2:]
    with parts.db.writing() as db:
        over = {"worker": ELSEWHERE, "lease_until": utc_now() - timedelta(seconds=1)}
        db.execute(update(LiveTurn).where(owned_by(scope, LiveTurn)).values(**over))
        if trouble == "unreadable":
            of_bad = owned_by(scope, TurnRow), TurnRow.id.in_([turn.id for turn in turns[:2]])
            db.execute(update(TurnRow).where(*of_bad).values(admission=5))

    def refuse(store: Any, ends: Any, chat: Scope, leases: Any) -> None:
        if chat.session_id in {each.session_id for each in bad}:
            raise StorageUnavailable("the database took too long over this one")
        interrupt(store, ends, chat, leases)

    lapsed, interrupt = live.with_lapsed_lease, jobs.interrupt_abandoned
    if trouble == "storage":
        monkeypatch.setattr(jobs, "interrupt_abandoned", refuse)
    order = {chat.session_id: place for place, chat in enumerate(chats)}
    bad_first = lambda *args: sorted(lapsed(*args), key=lambda chat: order[chat.session_id])  # noqa: E731
    monkeypatch.setattr(live, "with_lapsed_lease", bad_first)
    job = InterruptAbandonedTurns(kit.store, live, kit.ends, kit.leases, parts.binder)
    for _ in range(4):
        beat(parts, job)
    assert [status(parts, chat) for chat in chats] == ["running"] * 2 + ["interrupted"] * 2
    told = [record.getMessage() for record in caplog.records if "could not be interrupted" in record.message]
    assert len(told) == len(bad), "each is told once"
    assert len(good) == 2


def status(parts: Parts, chat: Scope) -> str:
    with parts.binder.bound(chat):
        (turn,) = parts.chats.transcript(chat).turns
        return turn.status
