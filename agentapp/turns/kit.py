"""What every turn is made with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, estimated_input
from agentapp.agents.team import Crew, Team
from agentapp.agents.tool import Notes, PastChats
from agentapp.agents.tracing import NoTraces, Traces
from agentapp.errors import IsolationViolated
from agentapp.events import Rendered, Usage
from agentapp.guardrails.admission import MaxCost, Reservation
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import Scope
from agentapp.telemetry import Telemetry
from agentapp.turns.ends import EndedTurn, Settlement, TurnEnds
from agentapp.turns.leases import Leases
from agentapp.turns.live_agents import LiveAgents
from agentapp.turns.stores import TurnStore
from agentapp.turns.uncounted import UncountedTurns
from agentapp.turns.unstored import UnstoredEnds
from agentapp.turns.values import Spent


@dataclass(frozen=True, slots=True)
class TurnKit:
    """It lives as long as the process; a `Turn` never does."""

    store: TurnStore
    guardrails: Guardrails
    leases: Leases
    team: Team
    driver: ThreadedDriver
    model: str
    limits: Limits
    notes: Notes
    past_chats: PastChats
    prices: Prices
    telemetry: Telemetry
    live_agents: LiveAgents
    render: Callable[[str], Rendered]
    traces: Traces = field(default_factory=NoTraces)
    uncounted: UncountedTurns = field(default_factory=UncountedTurns)
    unstored: UnstoredEnds = field(default_factory=UnstoredEnds)

    @property
    def ends(self) -> TurnEnds:
        return TurnEnds(self.guardrails, self.telemetry, self.uncounted)

    def settlement(self, ended: EndedTurn) -> Settlement:
        return Settlement(self.store, self.ends, ended)

    def max_cost(self) -> MaxCost:
        """The most a turn can cost. It is reserved before the first call of the model."""
        tokens = self.limits.tokens
        return MaxCost(tokens, self.prices.most(self.team.models(self.model), tokens))

    def spent_on(self, calls: tuple[tuple[str, str, Usage], ...]) -> Spent:
        """``calls`` are the agent, the model and the usage of each."""
        parts = self.prices.parts(calls)
        usage = sum((part.usage for part in parts), Usage())
        charged = sum(part.charged_microusd for part in parts)
        is_known = all(self.prices.knows(part.model) for part in parts)
        return Spent(usage, charged if is_known else None, charged, parts)

    def with_first_call(
        self,
        reservation: Reservation,
        scope: Scope,
        agent_name: str,
        before: tuple[Message, ...],
        text: str,
    ) -> Reservation:
        """The reservation with the cost of the turn's first model call, as far as it can be known now."""
        agent = self.team.find(agent_name)
        messages = (*before, Message("user", (text,)))
        tokens = estimated_input(agent.system_for(scope), messages, self.team.specs_of(agent))
        model = agent.model or self.model
        return replace(
            reservation,
            first_call_tokens=tokens,
            first_call_microusd=self.prices.charge([(model, Usage(tokens))]),
            first_call_agent=agent.name,
            first_call_model=model,
        )

    def build_agents(self, scope: Scope) -> Crew:
        began = time.perf_counter()
        crew = self.team.build_for_turn(scope, self.report)
        self.telemetry.observe("agent_creation_seconds", time.perf_counter() - began)
        self.live_agents.add(crew)
        return crew

    def reset_agents(self, crew: Crew) -> None:
        """Their turn is over."""
        began = time.perf_counter()
        crew.reset()
        self.live_agents.release(crew)
        self.telemetry.observe("agent_reset_seconds", time.perf_counter() - began)

    def report(self, violated: IsolationViolated) -> None:
        self.telemetry.violation(
            violated.kind, str(violated), violated.request_id, tenant_id=violated.tenant_id
        )
