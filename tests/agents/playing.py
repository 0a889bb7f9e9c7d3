"""Playing a turn with a model that follows a script, for the tests of the loop and of its drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agentapp.agents import (
    Agent,
    AsyncDriver,
    Event,
    Team,
    TurnLoop,
    tool,
)
from agentapp.agents.actions import Loop
from agentapp.agents.results import MAX_RESULT_CHARS
from agentapp.agents.tool import ToolContext
from tests.support.scripted import scope

A = scope("a")


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@tool
def crash() -> str:
    """Always fails."""
    raise RuntimeError("/etc/secret: permission denied")


@tool
def exits() -> str:
    """Tries to end the process."""
    raise SystemExit(3)


@tool
def unshowable() -> object:
    """Returns what cannot be shown."""
    return object()


@tool
def huge() -> str:
    """Returns far too much."""
    return "x" * (MAX_RESULT_CHARS * 3)


TEAM = Team(
    Agent("triage", "You are first.", tools=(double, crash, exits, unshowable, huge)),
    (
        Agent("maths", "You calculate.", tools=(double,), description="sums"),
        Agent("time", "You know the time.", description="clocks"),
    ),
)


@dataclass
class Played:
    """What a turn did."""

    loop: TurnLoop
    events: list[Event] = field(default_factory=list)
    ticks: int = 0
    error: BaseException | None = None

    @property
    def text(self) -> str:
        return "".join(e.data["text"] for e in self.events if e.kind == "text")

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events if e.kind != "text"]

    def note(self, event: Event | None) -> None:
        if event is None:
            self.ticks += 1
        else:
            self.events.append(event)

    def note_all(self, events: Iterable[Event | None]) -> None:
        for event in events:
            self.note(event)


Play = Callable[..., Played]


async def play_async(driver: AsyncDriver, loop: Loop, played: Played) -> None:
    async for event in driver.run(loop, ToolContext(A)):
        played.note(event)


def asked(model: list[Any]) -> list[Any]:
    found: list[Any] = model[0].asked
    return found


def results_of(model: list[Any], call: int) -> list[tuple[str, str, bool]]:
    """What the model was told of its tools in that call of it."""
    results = asked(model)[call].messages[-1].results
    return [(result.call_id, result.content, result.is_error) for result in results]
