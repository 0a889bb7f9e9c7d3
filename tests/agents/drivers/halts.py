"""Halting turns from another thread, and models that fall silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    Deadlines,
    Event,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
)
from agentapp.agents.provider import Provider
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    TurnFailed,
    TurnStopped,
)
from agentapp.events import Usage
from agentapp.isolation import ThreadBinder
from tests.support.messages_api import MessagesApi
from tests.support.scripted import scope

A = scope("a")
TEAM = Team(Agent("front", "You are first."), (Agent("other", "You are second.", description="more"),))
AT_ONCE = 3.0  # seconds: enough for a busy machine, and less than any tick, deadline or silence in here
SILENT = {
    "before the head": "[[hang:60]]",
    "after the head": "[[mute:60]] one two",
    "in the middle": "[[stall:60]] one two",
}


class Halt(Future[Any]):
    """Halted by another thread as soon as ``ready`` has returned, which may wait for something."""

    def __init__(self, ready: Callable[[], object], error: TurnFailed | None = None) -> None:
        super().__init__()
        self._ready, self.error, self.at = ready, error or TurnStopped(), 0.0
        threading.Thread(target=self._fire, name="agentapp-halting", daemon=True).start()

    def _fire(self) -> None:
        self._ready()
        self.at = time.monotonic()
        self.set_exception(self.error)


def turn(text: str = "hello", agent: str = "", team: Team = TEAM) -> TurnLoop:
    return TurnLoop(A, team.build(A), Opening(text, (), agent), "some-model")


def play(
    provider: Provider,
    loop: TurnLoop,
    halt: Future[Any] | None = None,
    deadlines: Deadlines | None = None,
    seen: Callable[[Event | None], object] = lambda event: None,
) -> str:
    """The text of the turn, or of as much of it as there was before a failure, which is let out."""
    said: list[str] = []
    for event in ThreadedDriver(provider, ThreadBinder(), deadlines).run(loop, ToolContext(A), halt):
        said += [event.data["text"]] if event and event.kind == "text" else []
        seen(event)
    return "".join(said)


def play_halted(provider: Provider, loop: TurnLoop, halt: Halt, **how: Any) -> None:
    with pytest.raises(type(halt.error)) as caught:
        play(provider, loop, halt, **how)
    assert time.monotonic() - halt.at < AT_ONCE
    assert caught.value is halt.error


def reading_threads_end() -> bool:
    """Whether every thread that reads a model's answer ends at once."""
    until = time.monotonic() + AT_ONCE
    readers = [thread for thread in threading.enumerate() if thread.name == "agentapp-model"]
    for thread in readers:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in readers)


def all_connections_close(api: MessagesApi) -> bool:
    return api.wait_until(lambda api: api.open_connections == 0, AT_ONCE)


def asked(api: MessagesApi, times: int = 1) -> Callable[[], bool]:
    return lambda: api.wait_until(lambda api: len(api.requests) == times)


class FallsSilent:
    """A model that says its pieces, then keeps silent until it is released; then it says the rest."""

    def __init__(self, *pieces: str | Usage, rest: tuple[Any, ...] = ("late",)) -> None:
        self._pieces, self._rest = pieces, rest
        self.silent, self.released = threading.Event(), threading.Event()

    def stream(self, call: object) -> Iterator[Any]:
        yield from self._pieces
        self.silent.set()
        self.released.wait(30)
        yield from self._rest


class FirstText(threading.Event):
    """Sees the events of a turn, and is set by the first text among them."""

    def __call__(self, event: Event | None) -> None:
        if event and event.kind == "text":
            self.set()
