"""A team of agents: its frozen description, and the crew of live agents that is made of it for one turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentapp.agents.agent import HAND_BACK, HAND_OVER, Agent, LiveAgent, refuse_duplicates
from agentapp.agents.provider import ToolSpec
from agentapp.agents.tool import Tool
from agentapp.errors import ForeignScope
from agentapp.isolation import Scope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Team:
    """A front agent and the specialists it may hand over to. Frozen, so all requests may share it.

    ``examples`` are questions that an empty chat offers.
    """

    front: Agent
    specialists: tuple[Agent, ...] = ()
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "specialists", tuple(self.specialists))
        object.__setattr__(self, "examples", tuple(self.examples))
        refuse_duplicates("agent", [self.front.name, *(agent.name for agent in self.specialists)])

    def models(self, default: str) -> frozenset[str]:
        """Every model that one of the agents may ask."""
        return frozenset(agent.model or default for agent in (self.front, *self.specialists))

    def build(self, scope: Scope, report: Callable[[ForeignScope], None] | None = None) -> Crew:
        """A fresh crew for one turn. It shares nothing with any other crew."""
        return Crew(self, scope, report or _log_report)


class Crew:
    """The live agents of one turn."""

    __slots__ = ("__weakref__", "front", "scope", "specialists")

    def __init__(self, team: Team, scope: Scope, report: Callable[[ForeignScope], None]) -> None:
        self.scope = scope
        own = _specs(team.front.tools)
        front_specs = (*own, _hand_over_spec(team)) if team.specialists else own
        self.front = LiveAgent(team.front, scope, front_specs, report)
        back = _hand_back_spec(team)
        self.specialists = tuple(
            LiveAgent(agent, scope, (*_specs(agent.tools), back), report) for agent in team.specialists
        )

    def find_specialist(self, name: object) -> LiveAgent | None:
        return next((agent for agent in self.specialists if agent.name == name), None)


def _specs(tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
    return tuple(tool.spec for tool in tools)


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


def _log_report(refusal: ForeignScope) -> None:
    log.error("isolation: %s", refusal)
