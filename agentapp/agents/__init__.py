"""Agents: describe them, build a fresh crew for a turn, run it against a model."""

from agentapp.agents.drivers.asynchronous import AsyncDriver
from agentapp.agents.drivers.shared import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits, Opening, TurnLoop
from agentapp.agents.provider import AsyncProvider, Message, ModelCall, Provider, Reply
from agentapp.agents.team import Agent, Crew, LiveAgent, Team
from agentapp.agents.tool import Tool, ToolContext, ToolInputError, tool
from agentapp.events import Event, Usage

__all__ = [
    "Agent",
    "AsyncDriver",
    "AsyncProvider",
    "Crew",
    "Deadlines",
    "Event",
    "Limits",
    "LiveAgent",
    "Message",
    "ModelCall",
    "Opening",
    "Provider",
    "Reply",
    "Team",
    "ThreadedDriver",
    "Tool",
    "ToolContext",
    "ToolInputError",
    "TurnLoop",
    "Usage",
    "tool",
]
