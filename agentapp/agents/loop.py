"""The loop model -> tools -> model of one turn. It decides and does no I/O: a driver carries its actions out.

The loop is a generator. It yields an action, the driver answers it: a `Reply` for `AskModel` (or
throws the `TurnFailed` in), the results for `RunTools`, nothing for `Emit`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, ToolResult, Usage
from agentapp.agents.team import HAND_BACK, HAND_OVER, Crew, LiveAgent
from agentapp.agents.tool import bad_result
from agentapp.errors import Declined, OutOfSteps, OutOfTokens, ProviderError, ProviderFailed, TurnFailed
from agentapp.isolation import Scope

CUT = "\n\n[The answer was cut here: it reached its greatest length.]"
DECLINED = "The model declined to answer this."
NOTHING_SAID = "The model gave an empty answer."


@dataclass(frozen=True, slots=True)
class Event:
    """Something a watcher may want to see. The kinds are those of the event stream."""

    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Emit:
    event: Event


@dataclass(frozen=True, slots=True)
class AskModel:
    """``lead`` goes before the first piece of text, to part it from what an earlier call said."""

    call: ModelCall
    lead: str


@dataclass(frozen=True, slots=True)
class RunTools:
    agent: LiveAgent
    calls: tuple[ToolCall, ...]


Action = Emit | AskModel | RunTools
Steps = Generator[Action, Any, "LiveAgent | None"]


@dataclass(frozen=True, slots=True)
class Opening:
    """How a turn begins: what was said before, what is said now, and whom the session is with."""

    text: str
    history: tuple[Message, ...] = ()
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """``microusd`` None is no limit, and so is None for the calls of any one tool in a turn or a session."""

    steps: int = 12
    tokens: int = 50_000
    reply_tokens: int = 8_192
    microusd: int | None = None
    tool_calls_turn: int | None = None
    tool_calls_session: int | None = None


@dataclass(slots=True)
class TurnLoop:
    """One turn's loop. ``spent``, ``answering`` and ``stays_with`` hold at any moment, failure or not."""

    scope: Scope
    crew: Crew
    opening: Opening
    model: str
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    called_before: Mapping[str, int] = field(default_factory=dict)
    called: Counter[str] = field(default_factory=Counter)
    spent: tuple[tuple[str, Usage], ...] = ()
    answering: str = ""
    stays_with: str = ""
    _said: bool = False
    _left_open: tuple[ToolCall, tuple[ToolResult, ...]] | None = None

    @property
    def usage(self) -> Usage:
        return sum((usage for _, usage in self.spent), Usage())

    def run(self) -> Generator[Action, Any, None]:
        """A turn that ends in any other way than by returning leaves the session with the front agent."""
        agent = self.crew.specialist(self.opening.agent) or self.crew.front
        self._brief(agent)
        yield from self._started(agent)
        for _ in range(self.limits.steps):
            following = yield from self._step(agent)
            if following is None:
                return
            agent = following
        raise OutOfSteps(f"No answer was found within {self.limits.steps} steps.")

    def _step(self, agent: LiveAgent) -> Steps:
        yield _emit("agent_thinking", agent=agent.name)
        call = agent.ask(self.scope, self.model, self._reply_tokens(agent))
        try:
            reply: Reply = yield AskModel(call, "\n\n" if self._said else "")
        except TurnFailed as error:
            self.spent += ((call.model, error.usage or Usage()),)
            return (yield from self._fall_back(agent, error))
        self.spent += ((call.model, reply.usage),)
        self._said = self._said or bool(reply.text)
        agent.hear(self.scope, Message("assistant", (reply.text,) if reply.text else (), reply.calls))
        if reply.calls:
            return (yield from self._act(agent, reply.calls))
        if not self._said:
            raise Declined(DECLINED) if reply.stop_reason == "refusal" else ProviderFailed(NOTHING_SAID)
        if reply.stop_reason == "max_tokens":
            yield _emit("text", text=CUT)
        self.stays_with = "" if agent is self.crew.front else agent.name
        yield _emit("agent_completed", agent=agent.name)
        return None

    def _act(self, agent: LiveAgent, calls: tuple[ToolCall, ...]) -> Steps:
        moves = tuple(call for call in calls if call.name == self._move_of(agent))
        results = yield from self._run_tools(agent, tuple(call for call in calls if call not in moves))
        results += tuple(bad_result(call, "only one hand-over at a time") for call in moves[1:])
        if not moves:
            agent.hear(self.scope, Message("user", results=results))
            return agent
        if agent is self.crew.front:
            return (yield from self._hand_over(agent, moves[0], results))
        summary = _text_in(moves[0].input, "summary")
        return (yield from self._hand_back(agent, summary, failed=False))

    def _run_tools(
        self, agent: LiveAgent, calls: tuple[ToolCall, ...]
    ) -> Generator[Action, Any, tuple[ToolResult, ...]]:
        if not calls:
            return ()
        for call in calls:
            yield _emit("tool_executing", call_id=call.id, name=call.name, input=call.input)
        limited = [self._limited(agent, call) for call in calls]
        allowed = tuple(call for call, over in zip(calls, limited, strict=True) if over is None)
        ran = iter((yield RunTools(agent, allowed)) if allowed else ())
        results: tuple[ToolResult, ...] = tuple(over or next(ran) for over in limited)
        for call, result, over in zip(calls, results, limited, strict=True):
            yield _emit(
                "tool_completed",
                call_id=call.id,
                name=call.name,
                output=result.content,
                failed=result.is_error,
                limited=over is not None,
            )
        return results

    def _limited(self, agent: LiveAgent, call: ToolCall) -> ToolResult | None:
        """What the model is told instead, if the tool has had all its calls. If not, this one is counted."""
        tool = agent.tool(call.name)
        if tool is None:
            return None
        this_turn, before = self.called[tool.name], self.called_before.get(tool.name, 0)
        per_turn = _tighter(tool.per_turn, self.limits.tool_calls_turn)
        per_session = _tighter(tool.per_session, self.limits.tool_calls_session)
        if per_turn is not None and this_turn >= per_turn:
            return bad_result(call, f"its limit of {per_turn:,} a turn is reached")
        if per_session is not None and before + this_turn >= per_session:
            return bad_result(call, f"its limit of {per_session:,} a chat is reached")
        self.called[tool.name] += 1
        return None

    def _hand_over(self, front: LiveAgent, call: ToolCall, results: tuple[ToolResult, ...]) -> Steps:
        wanted = call.input if isinstance(call.input, dict) else {}
        specialist = self.crew.specialist(wanted.get("to"))
        parameters = wanted.get("parameters") or {}
        if specialist is None or not isinstance(parameters, dict):
            known = ", ".join(agent.name for agent in self.crew.specialists)
            problem = bad_result(call, f"hand over to one of: {known}; parameters must be an object")
            front.hear(self.scope, Message("user", results=(*results, problem)))
            return front
        task = _text_in(wanted, "task")
        self._left_open = (call, results)
        specialist.reset()
        note = f"[Handed over by {front.name}] Task: {task}"
        if parameters:
            note += f" Parameters: {json.dumps(parameters, ensure_ascii=False)}"
        self._brief(specialist, note)
        yield _emit("agent_completed", agent=front.name)
        yield _handed_over(front, specialist, task, parameters)
        yield from self._started(specialist)
        return specialist

    def _hand_back(self, specialist: LiveAgent, summary: str, *, failed: bool) -> Steps:
        """To the front agent, which goes on from where it handed over or, if it was not asked yet, begins."""
        front = self.crew.front
        note = f"[Handed back by {specialist.name}] {summary}"
        specialist.reset()
        if self._left_open is None:
            self._brief(front, note)
        else:
            call, results = self._left_open
            self._left_open = None
            back = ToolResult(call.id, note, is_error=failed)
            front.hear(self.scope, Message("user", results=(*results, back)))
        yield _emit("agent_completed", agent=specialist.name)
        yield _handed_over(specialist, front, summary, {})
        yield from self._started(front)
        return front

    def _fall_back(self, agent: LiveAgent, error: TurnFailed) -> Steps:
        """A specialist that cannot answer is no reason to give up, unless part of its answer was shown or
        the time is up.
        """
        if agent is self.crew.front or not isinstance(error, ProviderError) or error.said_something:
            raise error
        return (yield from self._hand_back(agent, f"It could not answer: {error}", failed=True))

    def _brief(self, agent: LiveAgent, note: str = "") -> None:
        texts = (self.opening.text, note) if note else (self.opening.text,)
        agent.hear(self.scope, *self.opening.history, Message("user", texts))

    def _started(self, agent: LiveAgent) -> Generator[Action, Any, None]:
        self.answering = agent.name
        yield _emit("agent_started", agent=agent.name)

    def _move_of(self, agent: LiveAgent) -> str:
        return HAND_OVER if agent is self.crew.front else HAND_BACK

    def _reply_tokens(self, agent: LiveAgent) -> int:
        left = self.limits.tokens - self.usage.total_tokens
        if left <= 0:
            raise OutOfTokens(f"No answer was found within {self.limits.tokens:,} tokens.")
        price = self.prices.of(agent.agent.model or self.model)[1]
        if self.limits.microusd is not None and price:
            left = min(left, int((self.limits.microusd - self.prices.charge(self.spent)) / price))
        if left <= 0:
            raise OutOfTokens("What is left of the budget is not enough for an answer.")
        return min(left, self.limits.reply_tokens)


def _emit(kind: str, **data: Any) -> Emit:
    return Emit(Event(kind, data))


def _handed_over(giver: LiveAgent, taker: LiveAgent, task: str, parameters: Mapping[str, Any]) -> Emit:
    return _emit(
        "handed_over", **{"from": giver.name, "to": taker.name, "task": task, "parameters": parameters}
    )


def _tighter(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _text_in(value: object, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
