"""What a turn's loop asks its driver to do."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from agentapp.agents.provider import ModelCall, ToolCall
from agentapp.agents.team import LiveAgent
from agentapp.events import Event


@dataclass(frozen=True, slots=True)
class Emit:
    """Yield this event to the reader."""

    event: Event


@dataclass(frozen=True, slots=True)
class AskModel:
    """Call the model. ``separator`` goes before the first piece of text, after what an earlier call said."""

    call: ModelCall
    separator: str


@dataclass(frozen=True, slots=True)
class RunTools:
    """Call these tools of the agent, all at the same time."""

    agent: LiveAgent
    calls: tuple[ToolCall, ...]


Action = Emit | AskModel | RunTools


class Loop(Protocol):
    """What a driver carries out: it answers each action, as `agentapp.agents.loop` says."""

    def run(self) -> Generator[Action, Any, None]: ...
