"""The loop of one turn: model, tools, model again. It decides and does no I/O; a driver carries it out.

The loop is a generator of actions. The driver answers each of them: `AskModel` with a `Reply`, or by throwing
the `TurnFailed` in; `RunTools` with the results; `Emit` with nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentapp.agents.actions import Action, AskModel, Emit, RunTools
from agentapp.agents.meter import Meter
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, Reply, ToolCall, ToolResult
from agentapp.agents.results import error_result
from agentapp.agents.team import HAND_BACK, HAND_OVER, Crew, LiveAgent
from agentapp.errors import (
    Declined,
    EmptyAnswer,
    ForeignToolResult,
    OutOfSteps,
    OutOfTokens,
    ProviderError,
    ProviderMisconfigured,
    TurnFailed,
)
from agentapp.events import (
    AgentCompleted,
    AgentStarted,
    AgentThinking,
    HandedOver,
    Text,
    ToolCompleted,
    ToolExecuting,
    Usage,
)
from agentapp.isolation import Scope

CUT = "\n\n[The answer was cut here: it reached its greatest length.]"
DECLINED = "The model declined to answer this."
NOTHING_SAID = "The model gave an empty answer."


Steps = Generator[Action, Any, LiveAgent | None]  # returns the agent that goes on, None at the end


@dataclass(frozen=True, slots=True)
class Opening:
    """What a turn begins with: the user's message, the messages before it, and the agent the session is with.

    An ``agent`` that is not a specialist of the team means the front agent.
    """

    text: str
    history: tuple[Message, ...] = ()
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one turn may use. None is no limit.

    ``tool_calls_turn`` and ``tool_calls_session`` limit the calls of any one tool.
    """

    steps: int = 12
    tokens: int = 50_000
    reply_tokens: int = 8_192
    microusd: int | None = None
    tool_calls_turn: int | None = None
    tool_calls_session: int | None = None


@dataclass(slots=True)
class TurnLoop:
    """One turn's loop. Its attributes are right at any moment, also after a failure.

    - ``called``: how often each tool was called in this turn; ``called_before``: in the session before it
    - ``answering``: the name of the agent at work
    - ``stays_with``: the specialist that the session's next turn begins with, if any
    - ``checks``: of isolation, so many were made
    - ``setup_faults``: models that cannot be used as the operator has set them up, and why
    """

    scope: Scope
    crew: Crew
    opening: Opening
    model: str
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    called_before: Mapping[str, int] = field(default_factory=dict)
    called: Counter[str] = field(default_factory=Counter)
    answering: str = ""
    stays_with: str = ""
    checks: int = 0
    setup_faults: tuple[tuple[str, str], ...] = ()
    # The agent and the model of each call with its usage, or with its meter while the call is under way. It
    # is always replaced as a whole: another thread may look at any moment, and must see no call twice.
    _calls: tuple[tuple[str, str, Usage | Meter], ...] = ()
    _said_something: bool = False
    _open_hand_over: tuple[ToolCall, tuple[ToolResult, ...]] | None = None

    @property
    def calls(self) -> int:
        """How many calls of a model it has begun."""
        return len(self._calls)

    @property
    def usage(self) -> Usage:
        return sum((usage for _, _, usage in self.spent), Usage())

    @property
    def spent(self) -> tuple[tuple[str, str, Usage], ...]:
        """The agent, the model and the usage of each model call, also of one that is under way."""
        return self._spent(lambda meter: meter.usage)

    @property
    def spent_if_cut(self) -> tuple[tuple[str, str, Usage], ...]:
        """The same, but a call that is about to be made counts as made: if the worker dies now, nobody will
        know whether it was.
        """
        return self._spent(lambda meter: meter.usage_if_sent)

    def _spent(self, usage_of: Callable[[Meter], Usage]) -> tuple[tuple[str, str, Usage], ...]:
        return tuple(
            (agent, model, spent if isinstance(spent, Usage) else usage_of(spent))
            for agent, model, spent in self._calls
        )

    def run(self) -> Generator[Action, Any, None]:
        """A turn that ends in any other way than by returning leaves the session with the front agent."""
        agent = self.crew.find_specialist(self.opening.agent) or self.crew.front
        self._brief(agent)
        yield self._start(agent)
        for _ in range(self.limits.steps):
            next_agent = yield from self._step(agent)
            if next_agent is None:
                return
            agent = next_agent
        raise OutOfSteps(f"No answer was found within {self.limits.steps} steps.")

    def _step(self, agent: LiveAgent) -> Steps:
        call = agent.make_call(self.scope, self.model, self._reply_tokens(agent))
        self._calls = (*self._calls, (agent.name, call.model, call.meter))
        yield Emit(AgentThinking(agent.name))
        try:
            reply: Reply = yield AskModel(call, "\n\n" if self._said_something else "")
        except TurnFailed as error:
            self._end_call(error.usage or Usage())
            if isinstance(error, ProviderMisconfigured):
                self.setup_faults += ((call.model, error.cause),)
            return (yield from self._fall_back(agent, error))
        self._end_call(reply.usage)
        self._said_something = self._said_something or bool(reply.text)
        message = Message("assistant", (reply.text,) if reply.text else (), reply.calls)
        agent.add_messages(self.scope, message)
        if reply.calls:
            return (yield from self._act(agent, reply.calls))
        return (yield from self._finish(agent, reply))

    def _finish(self, agent: LiveAgent, reply: Reply) -> Steps:
        """The model has called no tools, so the turn is over."""
        if not self._said_something:
            raise Declined(DECLINED) if reply.stop_reason == "refusal" else EmptyAnswer(NOTHING_SAID)
        if reply.stop_reason == "max_tokens":
            yield Emit(Text(CUT))
        self.stays_with = "" if agent is self.crew.front else agent.name
        yield Emit(AgentCompleted(agent.name))
        return None

    def _act(self, agent: LiveAgent, calls: tuple[ToolCall, ...]) -> Steps:
        """Run the tools that the model called, then hand the conversation on if it asked for that."""
        hand_off = HAND_OVER if agent is self.crew.front else HAND_BACK
        hand_offs = tuple(call for call in calls if call.name == hand_off)
        results = yield from self._run_tools(agent, tuple(call for call in calls if call not in hand_offs))
        results += tuple(error_result(call, "only one hand-over at a time") for call in hand_offs[1:])
        if not hand_offs:
            agent.add_messages(self.scope, Message("user", results=results))
            return agent
        if agent is self.crew.front:
            return (yield from self._hand_over(agent, hand_offs[0], results))
        summary = _text_in(hand_offs[0].input, "summary")
        return (yield from self._hand_back(agent, summary, failed=False))

    def _run_tools(
        self, agent: LiveAgent, calls: tuple[ToolCall, ...]
    ) -> Generator[Action, Any, tuple[ToolResult, ...]]:
        if not calls:
            return ()
        for call in calls:
            yield Emit(ToolExecuting(call.id, call.name, call.input))
        refusals = [self._count_or_refuse(agent, call) for call in calls]
        allowed = tuple(call for call, refusal in zip(calls, refusals, strict=True) if refusal is None)
        ran = iter(map(self._own_result, allowed, (yield RunTools(agent, allowed))) if allowed else ())
        results: tuple[ToolResult, ...] = tuple(refusal or next(ran) for refusal in refusals)
        for call, result, refusal in zip(calls, results, refusals, strict=True):
            limited = refusal is not None
            yield Emit(ToolCompleted(call.id, call.name, result.content, result.is_error, limited))
        return results

    def _own_result(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """One that is of another request is not used."""
        self.checks += 1
        if result.scope is None or result.scope == self.scope:
            return result
        self.crew.report(ForeignToolResult(self.scope, result.scope))
        return error_result(call, "its result could not be used")

    def _count_or_refuse(self, agent: LiveAgent, call: ToolCall) -> ToolResult | None:
        """Count the call. If the tool has had all its calls, the error that the model is told instead."""
        tool = agent.find_tool(call.name)
        if tool is None:
            return None
        this_turn, before = self.called[tool.name], self.called_before.get(tool.name, 0)
        per_turn = _smaller(tool.per_turn, self.limits.tool_calls_turn)
        per_session = _smaller(tool.per_session, self.limits.tool_calls_session)
        if per_turn is not None and this_turn >= per_turn:
            return error_result(call, f"its limit of {per_turn:,} a turn is reached")
        if per_session is not None and before + this_turn >= per_session:
            return error_result(call, f"its limit of {per_session:,} a chat is reached")
        self.called[tool.name] += 1
        return None

    def _hand_over(self, front: LiveAgent, call: ToolCall, results: tuple[ToolResult, ...]) -> Steps:
        wanted = call.input if isinstance(call.input, dict) else {}
        specialist = self.crew.find_specialist(wanted.get("to"))
        parameters = wanted.get("parameters") or {}
        if specialist is None or not isinstance(parameters, dict):
            known = ", ".join(agent.name for agent in self.crew.specialists)
            problem = error_result(call, f"hand over to one of: {known}; parameters must be an object")
            front.add_messages(self.scope, Message("user", results=(*results, problem)))
            return front
        task = _text_in(wanted, "task")
        self._open_hand_over = (call, results)
        specialist.reset()
        note = f"[Handed over by {front.name}] Task: {task}"
        if parameters:
            note += f" Parameters: {json.dumps(parameters, ensure_ascii=False)}"
        self._brief(specialist, note)
        yield Emit(AgentCompleted(front.name))
        yield Emit(HandedOver(front.name, specialist.name, task, parameters))
        yield self._start(specialist)
        return specialist

    def _hand_back(self, specialist: LiveAgent, summary: str, *, failed: bool) -> Steps:
        """To the front agent: it goes on where it handed over, or begins if it had no part in this turn."""
        front = self.crew.front
        note = f"[Handed back by {specialist.name}] {summary}"
        specialist.reset()
        if self._open_hand_over is None:
            self._brief(front, note)
        else:
            call, results = self._open_hand_over
            self._open_hand_over = None
            back = ToolResult(call.id, note, is_error=failed)
            front.add_messages(self.scope, Message("user", results=(*results, back)))
        yield Emit(AgentCompleted(specialist.name))
        yield Emit(HandedOver(specialist.name, front.name, summary, {}))
        yield self._start(front)
        return front

    def _fall_back(self, agent: LiveAgent, error: TurnFailed) -> Steps:
        """If a specialist cannot answer, the front agent tries, unless part of the specialist's answer was
        already shown or the turn has to end.
        """
        if agent is self.crew.front or not isinstance(error, ProviderError) or error.said_something:
            raise error
        return (yield from self._hand_back(agent, f"It could not answer: {error}", failed=True))

    def _brief(self, agent: LiveAgent, note: str = "") -> None:
        """Tell the agent the conversation so far, with the note of a colleague if there is one."""
        texts = (self.opening.text, note) if note else (self.opening.text,)
        agent.add_messages(self.scope, *self.opening.history, Message("user", texts))

    def _start(self, agent: LiveAgent) -> Emit:
        self.answering = agent.name
        return Emit(AgentStarted(agent.name))

    def _end_call(self, usage: Usage) -> None:
        *ended, (agent, model, _) = self._calls
        self._calls = (*ended, (agent, model, usage))

    def _reply_tokens(self, agent: LiveAgent) -> int:
        """The most tokens that the next reply may have, within all that is left of the turn's limits."""
        left = self.limits.tokens - self.usage.total_tokens
        if left <= 0:
            raise OutOfTokens(f"No answer was found within {self.limits.tokens:,} tokens.")
        price = self.prices.of(agent.agent.model or self.model).output
        if self.limits.microusd is not None and price:
            charged = self.prices.charge((model, usage) for _, model, usage in self.spent)
            left = min(left, int((self.limits.microusd - charged) / price))
        if left <= 0:
            raise OutOfTokens("What is left of the budget is not enough for an answer.")
        return min(left, self.limits.reply_tokens)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _text_in(value: object, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
