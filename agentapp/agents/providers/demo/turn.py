"""A turn as the demo model sees it, and the move that it makes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentapp.agents.provider import Message, ModelCall, ToolCall, ToolResult, ToolSpec

MOVES = ("hand_over", "hand_back")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a call shows of the turn: the person's words, colleagues' notes on them, what was done since."""

    said: tuple[str, ...]
    notes: tuple[str, ...]
    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    offered: Mapping[str, ToolSpec]

    @property
    def words(self) -> str:
        return self.said[-1] if self.said else ""

    @property
    def handed_over(self) -> bool:
        return any(note.startswith("[Handed over ") for note in self.notes)

    @property
    def own_tools(self) -> tuple[ToolSpec, ...]:
        return tuple(spec for name, spec in self.offered.items() if name not in MOVES)

    @property
    def worked(self) -> bool:
        return any(made.name not in MOVES for made in self.calls)


@dataclass(frozen=True, slots=True)
class Move:
    """What to say and which tools to call; how long to wait before, and whether to break off in between."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    wait: float = 0.0
    breaks_off: bool = False


def hand_over(to: str, task: str, parameters: Any = None) -> Move:
    order = {"to": to, "task": task}
    return Move(calls=(("hand_over", {**order, "parameters": parameters} if parameters else order),))


def hand_back(summary: str) -> Move:
    return Move(calls=(("hand_back", {"summary": summary}),))


def look(call: ModelCall) -> Turn:
    asked = [n for n, message in enumerate(call.messages) if message.role == "user" and _person(message)]
    last = call.messages[asked[-1]] if asked else Message("user")
    since = call.messages[asked[-1] + 1 if asked else 0 :]
    return Turn(
        said=tuple("\n".join(_person(call.messages[n])) for n in asked),
        notes=tuple(text for text in last.texts if text not in _person(last)),
        calls=tuple(made for message in since for made in message.calls),
        results=tuple(result for message in since for result in message.results),
        offered=MappingProxyType({spec.name: spec for spec in call.tools}),
    )


def _person(message: Message) -> tuple[str, ...]:
    """The person's own words. A note never comes first, so a person may begin with "[Handed " too."""
    first = message.texts[:1] if not message.results else ()
    return first + tuple(text for text in message.texts[len(first) :] if not text.startswith("[Handed "))
