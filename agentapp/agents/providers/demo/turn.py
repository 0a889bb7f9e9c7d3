"""A turn as the demo model sees it, and what it decides to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentapp.agents.provider import Message, ModelCall, ToolCall, ToolResult, ToolSpec

HAND_OFF_TOOLS = ("hand_over", "hand_back")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a call shows of the turn: the user's messages, other agents' notes on the last one, and what was
    done since.
    """

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
        return tuple(spec for name, spec in self.offered.items() if name not in HAND_OFF_TOOLS)

    @property
    def has_used_tools(self) -> bool:
        return any(made.name not in HAND_OFF_TOOLS for made in self.calls)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to say and which tools to call; how many seconds to wait first, and whether to fail in between."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    wait: float = 0.0
    fails_midway: bool = False


def hand_over(to: str, task: str, parameters: Any = None) -> Decision:
    order = {"to": to, "task": task}
    return Decision(calls=(("hand_over", {**order, "parameters": parameters} if parameters else order),))


def hand_back(summary: str) -> Decision:
    return Decision(calls=(("hand_back", {"summary": summary}),))


def read_turn(call: ModelCall) -> Turn:
    """Read the turn out of a call: everything since the user's last message."""
    asked = [n for n, message in enumerate(call.messages) if message.role == "user" and _own_texts(message)]
    last = call.messages[asked[-1]] if asked else Message("user")
    since = call.messages[asked[-1] + 1 if asked else 0 :]
    return Turn(
        said=tuple("\n".join(_own_texts(call.messages[n])) for n in asked),
        notes=tuple(text for text in last.texts if text not in _own_texts(last)),
        calls=tuple(made for message in since for made in message.calls),
        results=tuple(result for message in since for result in message.results),
        offered=MappingProxyType({spec.name: spec for spec in call.tools}),
    )


def _own_texts(message: Message) -> tuple[str, ...]:
    """The user's own texts. A note never comes first, so a user may begin with "[Handed " too."""
    first = message.texts[:1] if not message.results else ()
    return first + tuple(text for text in message.texts[len(first) :] if not text.startswith("[Handed "))
