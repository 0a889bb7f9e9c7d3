"""Asking the demo model, and playing whole turns with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits, Opening, TurnLoop
from agentapp.agents.provider import Message, ModelCall, Reply, ToolSpec
from agentapp.agents.providers.demo import DemoProvider
from agentapp.agents.shipped import team
from agentapp.agents.team import Team
from agentapp.agents.tool import ToolContext
from agentapp.isolation import Scope, ThreadBinder

# A loaded machine is no failure.
unhurried = settings(deadline=None)
SCOPE = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
CREW = team.build(SCOPE)
FRONT = CREW.front.specs
MATHS, TIME, MEMORY = (specialist.specs for specialist in CREW.specialists)


def asked(*texts: str, tools: tuple[ToolSpec, ...] = (), since: tuple[Message, ...] = ()) -> ModelCall:
    return ModelCall("demo", "You help.", (Message("user", texts), *since), tools)


def calls_in(reply: Reply) -> list[tuple[str, Any]]:
    return [(made.name, made.input) for made in reply.calls]


class Stores:
    def __init__(self) -> None:
        self.kept: list[str] = []

    def add(self, scope: Scope, text: str) -> int:
        self.kept.append(text)
        return len(self.kept)

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        return list(enumerate(self.kept, 1))

    def remove(self, scope: Scope, number: int) -> bool:
        return False

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        return [("Paints", "2026-01-02", f"something about {words}")]


@dataclass(frozen=True)
class Played:
    reply: str
    path: tuple[str, ...]
    stays_with: str


def play(text: str, *, agent: str = "", history: tuple[Message, ...] = (), own: Team = team) -> Played:
    """One whole turn of a real team, with the demo model and the real loop."""
    stores = Stores()
    context = ToolContext(SCOPE, stores, stores, now=lambda: datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
    loop = TurnLoop(SCOPE, own.build(SCOPE), Opening(text, history, agent), "demo", Limits(steps=12))
    driver = ThreadedDriver(DemoProvider(delay=0), ThreadBinder())
    reply, path = "", []
    for event in driver.run(loop, context):
        if event is None:
            continue
        reply += event.data["text"] if event.kind == "text" else ""
        path += [event.data["to"]] if event.kind == "handed_over" else []
        path += [event.data["name"]] if event.kind == "tool_executing" else []
    return Played(reply, tuple(path), loop.stays_with)
