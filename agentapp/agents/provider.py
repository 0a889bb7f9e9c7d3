"""What a model is to the agents: the frozen values that go in and come out, and the two protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentapp.agents.cancellation import Cancellation
from agentapp.events import Usage

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``input`` is what the model sent: it is not checked yet, and it is not always an object."""

    id: str
    name: str
    input: Any


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A user message carries texts and tool results, an assistant message texts and tool calls."""

    role: Role
    texts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to a model.

    ``timeout`` is the longest silence in seconds, before the first piece and between any two pieces.
    """

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    timeout: float = 30.0
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """The finished answer to a `ModelCall`. ``text`` is exactly the streamed pieces joined."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = "end_turn"


class Provider(Protocol):
    """Streams pieces of text, then the `Reply` as the last item. Raises only `ProviderError`.

    An empty piece means progress that shows nothing, such as a part of a tool's input. A `Usage` in between
    says what the call has cost so far, in case it is ended before its `Reply`; it is not progress.
    """

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]: ...


class AsyncProvider(Protocol):
    """The same for asyncio. Cancelling the task that reads the stream ends the call."""

    def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]: ...
