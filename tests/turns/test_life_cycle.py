"""Start, drain, close: all that a server has to know of the app to begin and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import Reply
from agentapp.app import deadlines_of
from agentapp.isolation import Scope
from agentapp.turns.service import TurnService
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted
from tests.support.server_users import wait_for
from tests.support.turns import hurry, someone


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def uma(parts: Parts) -> Scope:
    return someone(parts, "uma")


def answering(parts: Parts, go_on: threading.Event) -> TurnService:
    """A model that says one half, and the other when it is told to."""

    def halves(call: Any) -> Iterator[str | Reply]:
        yield "One half"
        go_on.wait(20)
        yield ", and the other"
        yield Reply("One half, and the other")

    driver = ThreadedDriver(Scripted(halves), parts.binder, deadlines_of(parts.settings))
    return replace(parts.turns, kit=replace(parts.turns.kit, driver=driver))


def heartbeats() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("agentapp-heartbeat")]


def test_start_runs_the_heartbeat_and_close_ends_it(parts: Parts) -> None:
    assert heartbeats() == []
    parts.start(threads=20)
    assert sorted(heartbeats()) == ["agentapp-heartbeat", "agentapp-heartbeat-leases"]
    assert parts.turns.slots.total == 20 - parts.settings.threads_reserved
    parts.close()
    assert heartbeats() == []
    parts.close()


def test_an_app_without_turns_is_drained_at_once(parts: Parts) -> None:
    parts.start()
    assert parts.drain(60)


def test_draining_waits_for_a_turn_and_says_when_it_has_ended(
    parts: Parts, uma: Scope, go_on: threading.Event
) -> None:
    stream = answering(parts, go_on).send(uma, NewMessage("Hello"))
    assert not parts.drain(60)
    go_on.set()
    wait_for(lambda: parts.drain(60))
    end = stream.finish()
    assert end is not None
    assert (end.result.status, end.result.reply) == ("completed", "One half, and the other")
    stream.close()


@pytest.mark.parametrize("grace", [0, 0.2], ids=["at once", "when the time is nearly up"])
def test_a_turn_that_takes_too_long_is_interrupted_and_stored(
    parts: Parts, uma: Scope, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    hurry(monkeypatch, parts)
    stream = answering(parts, go_on).send(uma, NewMessage("Hello"))
    while (event := next(stream)) is None or event.kind != "text":
        pass
    began = time.monotonic()
    assert not parts.drain(grace)
    wait_for(lambda: parts.drain(grace))
    assert time.monotonic() - began < 10, "it was not waited for the model"
    end = stream.finish()
    assert end is not None
    assert (end.result.status, end.result.reply) == ("interrupted", "One half")
    stream.close()
    with parts.binder.bound(uma):
        assert [turn.status for turn in parts.chats.transcript(uma).turns] == ["interrupted"]


def test_a_second_call_can_only_shorten_the_time(parts: Parts, uma: Scope, go_on: threading.Event) -> None:
    stream = answering(parts, go_on).send(uma, NewMessage("Hello"))
    assert not parts.drain(3600)
    assert not parts.drain(7200)
    assert not parts.drain(0), "interrupted, and about to be stored"
    wait_for(lambda: parts.drain(3600))
    end = stream.finish()
    assert end is not None
    assert end.result.status == "interrupted"
    stream.close()


def test_a_closed_app_gives_its_connections_back(parts: Parts, uma: Scope) -> None:
    with parts.binder.bound(uma):
        parts.chats.page(uma)
    parts.close()
    assert parts.db.engine.pool.checkedin() == 0  # type: ignore[attr-defined]
    with parts.binder.bound(uma):
        assert parts.chats.page(uma)[0], "and it can still be used"
