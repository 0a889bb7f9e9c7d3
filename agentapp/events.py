"""Every kind of event of a turn, declared once: what is shown to readers, what is stored, what is replayed.

    event            when
    TurnStarted      first of all, with the user's message
    AgentStarted     an agent takes the conversation
    AgentThinking    the model is asked
    HandedOver       one agent gives the conversation to another
    ToolExecuting    a tool is called
    ToolCompleted    it has returned, failed or was not allowed
    Text             a piece of the reply; the pieces joined are the reply
    AgentCompleted   an agent is done
    TurnCompleted    last of all, with the result

An event lives in three forms. ``data`` is what followers are shown, and what is stored while the turn
runs. ``packed()`` is the small form that is kept when the turn has ended: the words are in the messages,
so a text is only its length. `unpacked` makes the same events of it again.

To add a kind, see docs/architecture.md, "Where do I add".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from agentapp.errors import Blame

Status = Literal["running", "completed", "failed", "stopped", "interrupted"]
Verdict = Literal["succeeded", "failed", "abandoned"]

MAX_KEPT_CHARS = 4_000  # of what a tool was given or gave back; the model itself sees all of it


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and how many model calls they were spent in.

    ``input_tokens`` is all that went in. Of these, the provider read ``cache_read_tokens`` from its cache and
    wrote ``cache_write_tokens`` to it: they have prices of their own.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.model_calls + other.model_calls,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*[mine - its for mine, its in zip(self.numbers, other.numbers, strict=True)])

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """In the order of the fields."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.model_calls,
            self.cache_read_tokens,
            self.cache_write_tokens,
        )


class UsagePart(NamedTuple):
    """What one agent used of one model, and what that was charged in millionths of a dollar."""

    agent: str
    model: str
    usage: Usage
    charged_microusd: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A reply as HTML that is safe to put into a page, and the name of the renderer that made it."""

    html: str
    renderer: str


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended: the one value that is shown, stored and settled with the guardrails.

    ``cost_microusd`` is what people are told, None if a price is not known. ``charged_microusd`` is
    what budgets count, where an unknown model counts as the dearest. That one, ``tool_calls`` and
    ``blame`` are only for settling with the guardrails, and ``parts``, which add up to the usage and the
    charge, for the usage by day. They are not stored with the turn.
    ``can_retry`` is whether a person whose turn failed is offered to try again. ``rendered`` is the reply as
    HTML. It is stored with the message; None if it was not made yet.
    """

    status: Status
    reply: str = ""
    agent: str = ""
    next_agent: str = ""
    title: str = ""
    usage: Usage = field(default_factory=Usage)
    cost_microusd: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    can_retry: bool = True
    charged_microusd: int = field(default=0, compare=False)
    tool_calls: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    blame: Blame = field(default="nobody", compare=False)
    parts: tuple[UsagePart, ...] = field(default=(), compare=False)
    rendered: Rendered | None = field(default=None, compare=False, repr=False)

    @property
    def cost_usd(self) -> float | None:
        return None if self.cost_microusd is None else self.cost_microusd / 1_000_000

    @property
    def verdict(self) -> Verdict:
        """How it counts for the breakers: a failure that is nobody's fault does not count at all."""
        if self.status == "completed":
            return "succeeded"
        return "failed" if self.status == "failed" and self.blame != "nobody" else "abandoned"


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all kinds. Its fields have the names they have in the JSON, but for a final underscore."""

    kind: ClassVar[str]

    @property
    def data(self) -> dict[str, Any]:
        """What followers are shown."""
        return {each.name.rstrip("_"): getattr(self, each.name) for each in fields(self)}

    def cleaned(self) -> Self:
        """The same event, without what no database or browser can hold, and not longer than is kept."""
        return self

    def packed(self) -> Any:
        """What is kept of it when the turn has ended."""
        return [self.kind, self.data]


@dataclass(frozen=True, slots=True)
class TurnStarted(Event):
    kind = "turn_started"
    turn_id: str
    session_id: str
    message: str = ""

    def packed(self) -> Any:
        return [self.kind, {"turn_id": self.turn_id, "session_id": self.session_id}]


@dataclass(frozen=True, slots=True)
class AgentStarted(Event):
    kind = "agent_started"
    agent: str


@dataclass(frozen=True, slots=True)
class AgentThinking(Event):
    kind = "agent_thinking"
    agent: str


@dataclass(frozen=True, slots=True)
class AgentCompleted(Event):
    kind = "agent_completed"
    agent: str


@dataclass(frozen=True, slots=True)
class HandedOver(Event):
    kind = "handed_over"
    from_: str
    to: str
    task: str
    parameters: Any

    def cleaned(self) -> HandedOver:
        return HandedOver(
            storable(self.from_), storable(self.to), storable(self.task), _bounded(self.parameters)
        )


@dataclass(frozen=True, slots=True)
class ToolExecuting(Event):
    kind = "tool_executing"
    call_id: str
    name: str
    input: Any

    def cleaned(self) -> ToolExecuting:
        return replace(self, input=_bounded(self.input))


@dataclass(frozen=True, slots=True)
class ToolCompleted(Event):
    kind = "tool_completed"
    call_id: str
    name: str
    output: str
    failed: bool
    limited: bool

    def cleaned(self) -> ToolCompleted:
        return replace(self, output=storable(self.output)[:MAX_KEPT_CHARS])


@dataclass(frozen=True, slots=True)
class Text(Event):
    kind = "text"
    text: str

    @property
    def data(self) -> dict[str, Any]:
        return {"text": self.text}  # there is one for every word: the general way takes five times as long

    def cleaned(self) -> Text:
        return Text(storable(self.text))

    def packed(self) -> Any:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class TurnCompleted(Event):
    """Not stored among the events: it is made again from the turn's row."""

    kind = "turn_completed"
    turn_id: str
    request_id: str
    result: TurnResult

    @property
    def data(self) -> dict[str, Any]:
        result = self.result
        data: dict[str, Any] = {
            "turn_id": self.turn_id,
            "request_id": self.request_id,
            "status": result.status,
            "reply": result.reply,
            "agent": result.agent,
            "title": result.title,
            "usage": asdict(result.usage),
            "cost_usd": result.cost_usd,
        }
        if result.error_code:
            data["error"] = {"code": result.error_code, "message": result.error_message}
            if not result.can_retry:
                data["error"]["can_retry"] = False
        return data


@dataclass(frozen=True, slots=True)
class OtherEvent(Event):
    """Stored by another version of this code, with a kind or fields that this one does not know. It is shown
    as it was.
    """

    name: str
    values: Mapping[str, Any]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.name

    @property
    def data(self) -> dict[str, Any]:
        return dict(self.values)


KINDS: tuple[type[Event], ...] = (
    TurnStarted,
    AgentStarted,
    AgentThinking,
    HandedOver,
    ToolExecuting,
    ToolCompleted,
    Text,
    AgentCompleted,
    TurnCompleted,
)


def from_json(kind: str, data: Mapping[str, Any]) -> Event:
    """The event of a stored kind and its data."""
    for event in KINDS:
        if event.kind == kind:
            names = [each.name for each in fields(event)]
            if {name.rstrip("_") for name in names} == data.keys():
                return event(*(data[name.rstrip("_")] for name in names))
    return OtherEvent(kind, data)


def unpacked(log: Iterable[Any], message: str, reply: str) -> list[Event]:
    """The events of an ended turn as they were, in the same order."""
    events: list[Event] = []
    at = 0
    for entry in log:
        if isinstance(entry, int):
            events.append(Text(reply[at : at + entry]))
            at += entry
        elif entry[0] == TurnStarted.kind:
            events.append(from_json(TurnStarted.kind, {**entry[1], "message": message}))
        else:
            events.append(from_json(*entry))
    return events


def text_of(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def agent_of(events: Sequence[Event]) -> str:
    """The agent that was answering last."""
    return next((event.agent for event in reversed(events) if isinstance(event, AgentStarted)), "")


def storable(text: str) -> str:
    """A model may say anything. NUL and half a surrogate pair are replaced: no database, sanitiser or
    network takes them.
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _bounded(value: object) -> object:
    """What a model gave a tool or another agent: as it is if every database and browser can read it, or else
    as text, cut to the length that is kept.
    """
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        clean = storable(written)[:MAX_KEPT_CHARS]
        return value if clean == written else clean
    except (TypeError, ValueError):  # NaN and Infinity, which Python reads, are no JSON
        return storable(json.dumps(value, ensure_ascii=False, default=str))[:MAX_KEPT_CHARS]
