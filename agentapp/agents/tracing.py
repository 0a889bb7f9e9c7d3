"""One trace a turn: a span for the turn, below it one for each agent, and below that one for each model call
and each tool call. Names and attributes are those of OpenTelemetry's conventions for GenAI.

A trace watches what the turn's loop asks for and what it is answered. So the loop and the drivers know
nothing of it, and both drivers are watched alike.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from agentapp.agents.actions import Action, AskModel, Emit, Loop, RunTools
from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.traced_content import input_messages, kept_text, output_messages, system_instructions
from agentapp.errors import TurnFailed, TurnStopped
from agentapp.events import (
    AgentCompleted,
    AgentStarted,
    Event,
    ToolCompleted,
    ToolExecuting,
    TurnResult,
    Usage,
)
from agentapp.isolation import Scope
from agentapp.logs import described
from agentapp.telemetry.spans import Attributes, Span, Tracer

T = TypeVar("T")

OPERATION = "gen_ai.operation.name"
WORKFLOW = "turn"  # what a turn is called among GenAI workflows
UNKNOWN_TOOL = "unknown"
MAX_CALL_ID_CHARS = 200

log = logging.getLogger(__name__)


class Trace(Protocol):
    """Of one turn. One thread after the other may call it, but only one at a time: whoever plays the turn."""

    def watched(self, loop: Loop) -> Loop:
        """The same loop, for a driver; what happens in it is traced."""

    def end(self, result: TurnResult) -> None:
        """The turn is over. What is still open ends with it."""


class Traces(Protocol):
    def begin(self, scope: Scope, turn_id: str, began: float) -> Trace:
        """For a turn that has begun at that time of the monotonic clock."""

    def start(self) -> None:
        """Call it in each worker, after the fork."""

    def close(self) -> None: ...


class NoTraces:
    def begin(self, scope: Scope, turn_id: str, began: float) -> NoTrace:
        return NoTrace()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoTrace:
    __slots__ = ()

    def watched(self, loop: Loop) -> Loop:
        return loop

    def end(self, result: TurnResult) -> None:
        pass


@dataclass(frozen=True, slots=True)
class TurnTraces:
    """``provider`` is who answers for the model. ``with_content``: also what people, models and tools say."""

    tracer: Tracer
    provider: str
    with_content: bool = False

    def begin(self, scope: Scope, turn_id: str, began: float) -> Trace:
        ids = {
            "gen_ai.conversation.id": scope.session_id,
            "agentapp.turn.id": turn_id,
            "agentapp.request.id": scope.request_id,
            "agentapp.tenant.id": scope.tenant_id,
            "user.id": scope.user_id,
        }
        attributes = {OPERATION: "invoke_workflow", "gen_ai.workflow.name": WORKFLOW, **ids}
        began_ns = time.time_ns() - int((time.monotonic() - began) * 1e9)
        name = f"invoke_workflow {WORKFLOW}"
        span = _tried(partial(self.tracer.begin, name, attributes, began_ns))
        if span is None:
            return NoTrace()
        return TurnTrace(span, {**ids, "gen_ai.provider.name": self.provider}, with_content=self.with_content)

    def start(self) -> None:
        try:
            self.tracer.start()
        except Exception as error:  # such as a bad value of one of OpenTelemetry's own variables
            log.error("no traces are sent: %s", described(error))

    def close(self) -> None:
        self.tracer.close()


class TurnTrace:
    """A turn that is dropped never ends its spans: the garbage collector may come at any moment, and ending
    one takes locks. They are not sent.
    """

    def __init__(self, turn: Span, common: Attributes, *, with_content: bool) -> None:
        self._turn, self._common, self._with_content = turn, common, with_content
        self._agent_name = ""
        self._agent: Span | None = None
        self._call: Span | None = None
        self._tools: deque[Span] = deque()  # in the order in which they were called
        self._tool_names: frozenset[str] = frozenset()
        self._ended_ns: dict[str, int | None] = {}

    def watched(self, loop: Loop) -> Loop:
        return _Watched(loop, self)

    def asked(self, action: Action) -> None:
        match action:
            case Emit(event):
                self._note(event)
            case AskModel(call):
                self._begin_call(call)

    def answered(self, action: Action, answer: Any) -> None:
        match action, answer:
            case AskModel(), Reply() as reply:
                finished: dict[str, Any] = {"gen_ai.response.finish_reasons": (reply.stop_reason,)}
                if self._with_content:
                    finished["gen_ai.output.messages"] = output_messages(reply)
                self._end_call(reply.usage, finished)
            case RunTools(calls=calls), results:
                for call, result in zip(calls, results, strict=True):
                    self._ended_ns[call.id] = result.ended_ns

    def failed(self, error: TurnFailed) -> None:
        """The model has not answered."""
        kind = None if isinstance(error, TurnStopped) else type(error).__name__
        self._end_call(error.usage or Usage(), {}, kind)

    def end(self, result: TurnResult) -> None:
        _tried(partial(self._end, result))

    def _end(self, result: TurnResult) -> None:
        error = result.error_code or ("turn-interrupted" if result.status == "interrupted" else None)
        for span in (*self._tools, self._call, self._agent):
            if span is not None:
                span.end(error)
        self._turn.add({"agentapp.turn.status": result.status})
        if result.cost_usd is not None:
            self._turn.add({"agentapp.turn.cost_usd": result.cost_usd})
        self._turn.end(error)

    def _note(self, event: Event) -> None:
        match event:
            case AgentStarted(name):
                named = {OPERATION: "invoke_agent", "gen_ai.agent.name": name}
                self._agent_name = name
                self._agent = self._turn.child(f"invoke_agent {name}", {**self._common, **named})
            case AgentCompleted() if self._agent is not None:
                self._agent.end()
                self._agent = None
            case ToolExecuting():
                self._begin_tool(event)
            case ToolCompleted():
                self._end_tool(event)

    def _begin_call(self, call: ModelCall) -> None:
        # A model may call a tool by any name, which then is words of its own.
        self._tool_names = frozenset(tool.name for tool in call.tools)
        attributes: dict[str, Any] = {
            **self._common,
            OPERATION: "chat",
            "gen_ai.request.model": call.model,
            "gen_ai.request.max_tokens": call.max_tokens,
            "gen_ai.request.stream": True,
            "gen_ai.agent.name": self._agent_name,
        }
        if self._with_content:
            attributes["gen_ai.system_instructions"] = system_instructions(call)
            attributes["gen_ai.input.messages"] = input_messages(call)
        self._call = self._parent.child(f"chat {call.model}", attributes, is_call=True)

    def _end_call(self, usage: Usage, attributes: Attributes, error: str | None = None) -> None:
        span, self._call = self._call, None
        if span is None:
            return
        span.add(
            {
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
                **attributes,
            }
        )
        span.end(error)

    def _begin_tool(self, event: ToolExecuting) -> None:
        name = event.name if event.name in self._tool_names else UNKNOWN_TOOL
        attributes: dict[str, Any] = {
            **self._common,
            OPERATION: "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": event.call_id[:MAX_CALL_ID_CHARS],
            "gen_ai.agent.name": self._agent_name,
        }
        if self._with_content:
            attributes["gen_ai.tool.call.arguments"] = kept_text(event.input)
        self._tools.append(self._parent.child(f"execute_tool {name}", attributes))

    def _end_tool(self, event: ToolCompleted) -> None:
        span = self._tools.popleft()
        if self._with_content:
            span.add({"gen_ai.tool.call.result": kept_text(event.output)})
        error = "tool-limited" if event.limited else "tool-failed" if event.failed else None
        span.end(error, self._ended_ns.pop(event.call_id, None))

    @property
    def _parent(self) -> Span:
        return self._agent or self._turn


class _Watched:
    def __init__(self, loop: Loop, trace: TurnTrace) -> None:
        self._loop, self._trace = loop, trace

    def run(self) -> Generator[Action, Any, None]:
        actions, trace = self._loop.run(), self._trace
        try:
            action = next(actions)
            while True:
                _tried(partial(trace.asked, action))
                try:
                    answer = yield action
                except TurnFailed as error:
                    _tried(partial(trace.failed, error))
                    action = actions.throw(error)
                else:
                    _tried(partial(trace.answered, action, answer))
                    action = actions.send(answer)
        except StopIteration:
            return
        finally:
            actions.close()


def _tried(act: Callable[[], T]) -> T | None:
    """A trace that cannot be kept must not end the turn that it is about."""
    try:
        return act()
    except Exception as error:
        log.warning("a trace is not whole: %s", described(error))
        return None
