"""Turns that end while PostgreSQL is away: nothing of them is lost, and no chat stays locked after it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.prices import Prices
from agentapp.agents.provider import ModelCall, Reply
from agentapp.app import deadlines_of
from agentapp.config import Settings
from agentapp.errors import AgentappError, StorageUnavailable, TurnInProgress
from agentapp.isolation import Scope
from agentapp.storage.models import LiveTurn
from agentapp.storage.owned import owned_by
from agentapp.storage.turns import SqlTurnStore
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.ends import Settlement
from agentapp.turns.feed import Subscription
from agentapp.turns.jobs import StoreUnstoredEnds
from agentapp.turns.service import TurnService
from agentapp.turns.turn import SAVED_LATER
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.metrics import counted
from tests.support.postgres_server import DATABASE, PostgresServer, postgres_server
from tests.support.scripted import SPENT
from tests.support.server_users import wait_for
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, someone
from tests.support.users import without_limits
from tests.turns.charging import OF_INPUT, charged

TIMEOUT_SECONDS = 30.0
HEALTHY_SECONDS = 5.0  # less than half the length of a lease


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.fixture
def postgres(server: PostgresServer) -> Iterator[PostgresServer]:
    yield server
    server.thaw()
    if not server.is_running:
        server.start()


@pytest.fixture
def parts(postgres: PostgresServer, settings: Settings, make_app: Any) -> Parts:
    database = f"t_{secrets.token_hex(8)}"
    postgres.execute(f"CREATE DATABASE {database} TEMPLATE {DATABASE}")
    wanted = without_limits(replace(settings, database_url=postgres.url_of(database)))
    found: Parts = make_app(wanted=wanted).extensions["agentapp"]
    return found


class Told:
    """A model that answers every call in the same way, once it is told to."""

    def __init__(self) -> None:
        self.go_on, self.calls = threading.Event(), 0
        self.asked = threading.Semaphore(0)

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        self.calls += 1
        call.meter.sent()
        yield "One half"
        self.asked.release()
        assert self.go_on.wait(TIMEOUT_SECONDS)
        yield ", and the other"
        yield Reply("One half, and the other", usage=SPENT)


@pytest.fixture
def model() -> Iterator[Told]:
    made = Told()
    yield made
    made.go_on.set()


@pytest.fixture
def turns(parts: Parts, model: Told) -> TurnService:
    driver = ThreadedDriver(model, parts.binder, deadlines_of(parts.settings))
    prices = Prices([("m", OF_INPUT, 1.0)])
    return replace(parts.turns, kit=replace(parts.turns.kit, driver=driver, prices=prices, model="m"))


def send(
    turns: TurnService, scope: Scope, text: str | None = "Hello", key: str | None = None, **place: Any
) -> Subscription:
    """Right after an outage, the chat is free in a moment."""
    ends = time.monotonic() + HEALTHY_SECONDS
    while True:
        try:
            with turns.binder.bound(scope):
                return turns.send(scope, NewMessage(text, key, **place))
        except TurnInProgress:
            assert time.monotonic() < ends, "the chat is locked"
            time.sleep(0.05)


def ended(subscription: Subscription) -> dict[str, Any]:
    try:
        end = subscription.finish(TIMEOUT_SECONDS)
    finally:
        subscription.close()
    assert end is not None
    return end.data


def status(parts: Parts, scope: Scope) -> list[str]:
    with parts.binder.bound(scope):
        return [turn.status for turn in parts.chats.transcript(scope).turns]


def whole(parts: Parts, scope: Scope) -> list[str]:
    with parts.binder.bound(scope):
        return [message.content for message in parts.chats.transcript(scope).messages]


def refused(call: Callable[[], object]) -> str:
    """The code of what this is refused with."""
    with pytest.raises(AgentappError) as raised:
        call()
    return raised.value.code


def end_while_away(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, scope: Scope
) -> dict[str, Any]:
    """A turn that ends while PostgreSQL is away: what its reader is told at the end."""
    reader = send(turns, scope)
    assert model.asked.acquire(timeout=TIMEOUT_SECONDS)
    postgres.stop("immediate")
    model.go_on.set()
    return ended(reader)


@pytest.fixture
def uma(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn whose end cannot be stored frees its thread at once."""
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", ())


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the heartbeat does not come to what is to be stored."""
    comes = threading.Event()
    real = StoreUnstoredEnds.run
    monkeypatch.setattr(StoreUnstoredEnds, "run", lambda job, now: comes.is_set() and real(job, now))
    return comes


pytestmark = pytest.mark.usefixtures("impatient")


def test_an_answer_that_ends_while_the_database_is_away_is_in_its_chat_when_it_is_back(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope
) -> None:
    """Completed, charged once and counted once; and its chat goes on, though the worker is busy."""
    end = end_while_away(parts, turns, model, postgres, uma)
    told = {"code": "storage-unavailable", "message": SAVED_LATER, "can_retry": False}
    assert (end["status"], end["reply"], end["error"]) == ("failed", "One half, and the other", told)
    assert turns.slots.taken() == 0
    assert counted(parts, "turns_total") == {}
    postgres.start()
    model.go_on.clear()
    with parts.binder.bound(uma):
        other = uma.within(parts.chats.create(uma).id)
    busy = send(turns, other)
    wait_for(lambda: status(parts, uma) == ["completed"], TIMEOUT_SECONDS)
    model.go_on.set()
    assert ended(busy)["status"] == "completed"
    assert whole(parts, uma) == ["Hello", "One half, and the other"]
    assert charged(parts, uma) == (20, 10)
    assert counted(parts, "turns_total") == {"turns_total completed": 2}
    assert ended(send(turns, uma, "Again"))["status"] == "completed"
    with parts.binder.bound(uma):
        again = ended(turns.follow(uma, end["turn_id"]))
    assert (again["status"], again["reply"]) == ("completed", "One half, and the other")


def test_during_the_outage_everything_about_such_a_chat_says_that_the_database_is_away(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope
) -> None:
    """And right after it everything works."""
    turn_id = end_while_away(parts, turns, model, postgres, uma)["turn_id"]
    asked: tuple[Callable[[], object], ...] = (
        lambda: turns.stop(uma, turn_id),
        lambda: turns.send(uma, NewMessage("More")),
        lambda: turns.send(uma, NewMessage(None, replaces=turn_id)),
        lambda: turns.delete_chat(uma),
        lambda: turns.follow(uma, turn_id),
    )
    for call in asked:
        with parts.binder.bound(uma):
            assert refused(call) == "storage-unavailable"
    postgres.start()
    with parts.binder.bound(uma):
        stopping = turns.stop(uma, turn_id)
    assert ended(stopping)["status"] == "completed", "it had ended before"
    assert ended(send(turns, uma, None, replaces=turn_id))["status"] == "completed"
    assert status(parts, uma) == ["completed", "completed"]
    with parts.binder.bound(uma):
        turns.delete_chat(uma)
    assert charged(parts, uma) == (20, 10)


def test_a_chat_that_is_deleted_before_its_answer_could_be_stored_is_charged_once(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope, held_back: Any
) -> None:
    end_while_away(parts, turns, model, postgres, uma)
    postgres.start()
    with parts.binder.bound(uma):
        turns.delete_chat(uma)
    held_back.set()
    wait_for(lambda: not len(turns.kit.unstored), TIMEOUT_SECONDS)
    assert charged(parts, uma) == (10, 5)


def test_an_answer_that_was_interrupted_by_another_machine_after_the_outage_is_whole_again(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope, held_back: Any
) -> None:
    end_while_away(parts, turns, model, postgres, uma)
    postgres.start()
    with parts.db.writing() as db:
        past = utc_now() - timedelta(seconds=1)
        db.execute(update(LiveTurn).where(owned_by(uma, LiveTurn)).values(worker=ELSEWHERE, lease_until=past))
    parts.turns.kit.leases._trusted_from = 0.0
    interrupt_abandoned(turns.kit.store, turns.kit.ends, uma, turns.kit.leases)
    assert status(parts, uma) == ["interrupted"]
    held_back.set()
    wait_for(lambda: status(parts, uma) == ["completed"], TIMEOUT_SECONDS)
    assert whole(parts, uma) == ["Hello", "One half, and the other"]
    assert charged(parts, uma) == (10, 5)


def test_an_end_whose_commit_nobody_heard_of_is_stored_once_though_the_database_went_away_with_it(
    parts: Parts,
    turns: TurnService,
    model: Told,
    postgres: PostgresServer,
    uma: Scope,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tries = Settlement.store, list[bool]()

    def commits_and_breaks_off(self: Settlement) -> bool:
        tries.append(real(self))
        if len(tries) == 1:
            postgres.stop("immediate")
            raise StorageUnavailable("the connection broke off")
        return tries[-1]

    monkeypatch.setattr(Settlement, "store", commits_and_breaks_off)
    reader = send(turns, uma)
    model.go_on.set()
    assert ended(reader)["status"] == "failed"
    postgres.start()
    wait_for(lambda: len(tries) == 2, TIMEOUT_SECONDS)
    wait_for(lambda: not len(turns.kit.unstored), TIMEOUT_SECONDS)
    assert tries == [True, True]
    assert whole(parts, uma) == ["Hello", "One half, and the other"]
    assert charged(parts, uma) == (10, 5)
    assert counted(parts, "turns_total") == {"turns_total completed": 1}


def test_a_message_that_was_taken_in_and_refused_as_its_commit_was_not_heard_of_locks_no_chat(
    parts: Parts,
    turns: TurnService,
    model: Told,
    postgres: PostgresServer,
    uma: Scope,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model was not asked, so it costs nothing; and the same message once more is told how it ended."""
    real, breaks_off = SqlTurnStore.chat, [True]

    @contextmanager
    def commits_and_breaks_off(self: SqlTurnStore, *args: Any) -> Iterator[Any]:
        with real(self, *args) as chat:
            yield chat
        if breaks_off.pop():
            postgres.stop("immediate")
            raise StorageUnavailable("the connection broke off")

    with monkeypatch.context() as patch:
        patch.setattr(SqlTurnStore, "chat", commits_and_breaks_off)
        assert refused(lambda: send(turns, uma, key="key")) == "storage-unavailable"
    postgres.start()
    turns.heartbeat.wake()
    assert ended(send(turns, uma, key="key"))["status"] == "interrupted"
    assert (status(parts, uma), model.calls) == (["interrupted"], 0)
    assert charged(parts, uma) == (0, 0)
    model.go_on.set()
    assert ended(send(turns, uma, "Again"))["status"] == "completed"


def test_a_database_that_hangs_for_a_while_loses_nothing_and_locks_nothing(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope
) -> None:
    reader = send(turns, uma)
    assert model.asked.acquire(timeout=TIMEOUT_SECONDS)
    postgres.freeze()
    model.go_on.set()
    assert reader.finish(1.5) is None
    postgres.thaw()
    assert ended(reader)["status"] == "completed"
    assert ended(send(turns, uma, "Again"))["status"] == "completed"
    assert charged(parts, uma) == (20, 10)


def test_a_worker_that_ends_waits_for_what_is_not_stored_yet(
    parts: Parts, turns: TurnService, model: Told, postgres: PostgresServer, uma: Scope
) -> None:
    end_while_away(parts, turns, model, postgres, uma)
    assert not parts.drain(TIMEOUT_SECONDS)
    postgres.start()
    wait_for(lambda: parts.drain(TIMEOUT_SECONDS), TIMEOUT_SECONDS)
    assert status(parts, uma) == ["completed"]


def test_a_worker_whose_grace_is_over_tries_a_last_time_and_says_what_is_lost(
    parts: Parts,
    turns: TurnService,
    model: Told,
    postgres: PostgresServer,
    uma: Scope,
    held_back: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    end_while_away(parts, turns, model, postgres, uma)
    turns.heartbeat.close()
    assert "1 ends of turns are lost" in caplog.text
    postgres.start()
    turns.heartbeat.wake()
    turns.heartbeat.close()
    assert status(parts, uma) == ["completed"]
