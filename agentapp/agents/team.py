"""Agents and teams as frozen descriptions, and the live agents that are made of them for one turn."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agentapp.agents.meter import Meter
from agentapp.agents.provider import Message, ModelCall, ToolSpec, estimated_input
from agentapp.agents.tool import Tool
from agentapp.errors import AgentsReused, ForeignScope, IsolationViolated
from agentapp.isolation import Scope, UserScope

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

    def system_for(self, scope: UserScope) -> str:
        """The instructions, after a line that is another one for each user.

        A provider's cache knows a prompt by its beginning. With this line no prompt begins like another
        user's: what a call costs and how long it takes does not depend on what others have asked, and tells
        nobody what they have asked. The line itself says nothing about the user.
        """
        owner = f"{scope.tenant_id}\0{scope.user_id}".encode()
        return f"[partition {hashlib.blake2b(owner, digest_size=12).hexdigest()}]\n\n{self.instructions}"


class LiveAgent:
    """An agent at work for one scope. A call with any other scope is refused and reported."""

    __slots__ = ("__weakref__", "_report", "_transcript", "agent", "scope", "specs")

    def __init__(
        self,
        agent: Agent,
        scope: Scope,
        specs: tuple[ToolSpec, ...],
        report: Callable[[IsolationViolated], None],
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
        system, messages = self.agent.system_for(scope), tuple(self._transcript)
        return ModelCall(
            model=self.agent.model or model,
            system=system,
            messages=messages,
            tools=self.specs,
            max_tokens=max_tokens,
            meter=Meter(estimated_input(system, messages, self.specs)),
        )

    def find_tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.agent.tools if tool.name == name), None)

    def reset(self) -> None:
        """Forget all messages: for another try within the same turn, and at its end."""
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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Team:
    """A front agent and the specialists it may hand over to. Frozen, so all requests may share it.

    ``examples`` are questions that an empty chat offers.
    """

    front: Agent
    specialists: tuple[Agent, ...] = ()
    examples: tuple[str, ...] = ()
    _specs: Mapping[str, tuple[ToolSpec, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "specialists", tuple(self.specialists))
        object.__setattr__(self, "examples", tuple(self.examples))
        refuse_duplicates("agent", [self.front.name, *(agent.name for agent in self.specialists)])
        specs = {agent.name: self._specs_of(agent) for agent in (self.front, *self.specialists)}
        object.__setattr__(self, "_specs", MappingProxyType(specs))

    def find(self, name: str) -> Agent:
        """The agent that a turn of a session with this agent begins with."""
        return next((agent for agent in self.specialists if agent.name == name), self.front)

    def specs_of(self, agent: Agent) -> tuple[ToolSpec, ...]:
        """Its tools as the model sees them."""
        return self._specs[agent.name]

    def _specs_of(self, agent: Agent) -> tuple[ToolSpec, ...]:
        own = tuple(tool.spec for tool in agent.tools)
        if agent is not self.front:
            return (*own, _hand_back_spec(self))
        return (*own, _hand_over_spec(self)) if self.specialists else own

    def models(self, default: str) -> frozenset[str]:
        """Every model that one of the agents may ask."""
        return frozenset(agent.model or default for agent in (self.front, *self.specialists))

    def build(self, scope: Scope, report: Callable[[IsolationViolated], None] | None = None) -> Crew:
        """A fresh crew for one turn. It shares nothing with any other crew."""
        return Crew(self, scope, report or _log_report)

    def build_for_turn(self, scope: Scope, report: Callable[[IsolationViolated], None]) -> Crew:
        """The same, whatever a team of somebody else's has made of `build`: agents that have worked before
        are reported, and others are made in their place.
        """
        crew = self.build(scope, report)
        if crew.take():
            return crew
        report(AgentsReused(crew.scope, scope))
        fresh = Crew(self, scope, report)
        fresh.take()
        return fresh


class Crew:
    """The live agents of one turn. Whoever plays the turn takes them first, and has them reset at the end."""

    __slots__ = ("__weakref__", "_is_taken", "front", "report", "scope", "specialists")

    def __init__(self, team: Team, scope: Scope, report: Callable[[IsolationViolated], None]) -> None:
        self.scope, self.report = scope, report
        self._is_taken = False
        self.front = LiveAgent(team.front, scope, team.specs_of(team.front), report)
        self.specialists = tuple(
            LiveAgent(agent, scope, team.specs_of(agent), report) for agent in team.specialists
        )

    @property
    def agents(self) -> tuple[LiveAgent, ...]:
        return (self.front, *self.specialists)

    def take(self) -> bool:
        """False if they were taken before, for this turn or another."""
        was_free, self._is_taken = not self._is_taken, True
        return was_free

    def reset(self) -> None:
        """The turn is over: whoever still has them finds nothing of it."""
        for agent in self.agents:
            agent.reset()

    def find_specialist(self, name: object) -> LiveAgent | None:
        return next((agent for agent in self.specialists if agent.name == name), None)


def _hand_over_spec(team: Team) -> ToolSpec:
    listed = "\n".join(f"- {a.name}: {a.description or 'no description'}" for a in team.specialists)
    return ToolSpec(
        HAND_OVER,
        f"Hand this conversation over to a specialist, who then answers the person directly.\n{listed}",
        {
            "type": "object",
            "properties": {
                "to": {"type": "string", "enum": [agent.name for agent in team.specialists]},
                "task": {
                    "type": "string",
                    "description": "What the specialist is to do, in a sentence.",
                },
                "parameters": {"type": "object", "description": "Values the specialist will need, by name."},
            },
            "required": ["to", "task"],
        },
    )


def _hand_back_spec(team: Team) -> ToolSpec:
    return ToolSpec(
        HAND_BACK,
        f"Give the conversation back to {team.front.name} when the person wants what is not your job.",
        {
            "type": "object",
            "properties": {"summary": {"type": "string", "description": "What was done and what is open."}},
            "required": ["summary"],
        },
    )


def _log_report(refusal: IsolationViolated) -> None:
    log.error("isolation: %s", refusal)
