"""Turns that end while PostgreSQL is away: nothing of them is lost, and no chat stays locked after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.prices import Prices
from agentapp.agents.provider import ModelCall, Reply
from agentapp.app import deadlines_of
from agentapp.config import Settings
from agentapp.errors import TurnInProgress
from agentapp.isolation import Scope
from agentapp.turns.feed import Subscription
from agentapp.turns.service import TurnService
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.scripted import SPENT
from tests.support.turns import someone
from tests.support.users import without_limits
from tests.turns.charging import OF_INPUT

TIMEOUT_SECONDS = 30.0
HEALTHY_SECONDS = 5.0


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
    wanted = without_limits(replace(settings, database_url=postgres.url))
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


def send(turns: TurnService, scope: Scope, text: str = "Hello", key: str | None = None) -> Subscription:
    with turns.binder.bound(scope):
        return turns.send(scope, NewMessage(text, key))


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


def test_reproduce(parts, turns, model, postgres, monkeypatch):
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", ())
    uma = someone(parts, "uma")
    sub = send(turns, uma)
    assert model.asked.acquire(timeout=10)
    postgres.stop()
    model.go_on.set()
    print(ended(sub))
    time.sleep(1)
    postgres.start()
    # the worker is busy
    model.go_on.clear()
    vic = someone(parts, "vic")
    busy = send(turns, vic)
    began = time.monotonic()
    while True:
        try:
            again = send(turns, uma, "again")
            break
        except TurnInProgress:
            time.sleep(0.1)
        if time.monotonic() - began > 60:
            break
    print("locked for", time.monotonic() - began, status(parts, uma))
    model.go_on.set()
    ended(busy), ended(again)
    assert 0
