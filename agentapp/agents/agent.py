"""One agent: its frozen description, and the live instance that works for one turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentapp.agents.provider import Message, ModelCall, ToolSpec
from agentapp.agents.tool import Tool
from agentapp.errors import ForeignScope
from agentapp.isolation import Scope

HAND_OVER = "hand_over"
HAND_BACK = "hand_back"


@dataclass(frozen=True, slots=True)
class Agent:
    """The description of an agent. ``description`` tells the front agent when to hand over to it."""

    name: str
    instructions: str
    tools: tuple[Tool, ...] = ()
    description: str = ""
    model: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", self.name):
            raise ValueError(f"agent name {self.name!r}: letters, digits, - and _, beginning with a letter")
        if not self.instructions.strip():
            raise ValueError(f"agent {self.name!r} needs instructions")
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise TypeError(f"agent {self.name!r}: {tool!r} is not a tool; decorate it with @tool")
        refuse_duplicates(f"agent {self.name!r}: tool", [t.name for t in self.tools] + [HAND_OVER, HAND_BACK])


class LiveAgent:
    """An agent at work for one scope. A call with any other scope is refused and reported."""

    __slots__ = ("__weakref__", "_report", "_transcript", "agent", "scope", "specs")

    def __init__(
        self, agent: Agent, scope: Scope, specs: tuple[ToolSpec, ...], report: Callable[[ForeignScope], None]
    ) -> None:
        self.agent, self.scope, self.specs = agent, scope, specs
        self._report = report
        self._transcript: list[Message] = []

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def is_fresh(self) -> bool:
        return not self._transcript

    def add_messages(self, scope: Scope, *messages: Message) -> None:
        self._refuse_foreign(scope)
        self._transcript.extend(messages)

    def make_call(self, scope: Scope, model: str, max_tokens: int) -> ModelCall:
        """The next question to the model: all messages so far, with this agent's instructions and tools."""
        self._refuse_foreign(scope)
        return ModelCall(
            model=self.agent.model or model,
            system=self.agent.instructions,
            messages=tuple(self._transcript),
            tools=self.specs,
            max_tokens=max_tokens,
        )

    def find_tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.agent.tools if tool.name == name), None)

    def reset(self) -> None:
        """Forget all messages, for another try within the same turn."""
        self._transcript = []

    def _refuse_foreign(self, scope: Scope) -> None:
        if scope != self.scope:
            refusal = ForeignScope(self.name, self.scope, scope)
            self._report(refusal)
            raise refusal


def refuse_duplicates(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} is there twice, or is a name agentapp uses itself")
