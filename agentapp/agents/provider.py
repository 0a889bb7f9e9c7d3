"""What a model is to the agents: frozen values that go in and come out, and the two protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and how many model calls they were spent in."""

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.model_calls + other.model_calls,
        )


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``input`` is whatever the model sent: not checked yet, and not always an object."""

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
    """One question to a model. ``timeout`` bounds the silence before the first and between any two pieces."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The finished answer to a `ModelCall`. ``text`` is exactly the streamed pieces joined."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = "end_turn"


class Provider(Protocol):
    """Streams pieces of text, then the `Reply` as the last item. Raises only `ProviderError`.

    An empty piece means: progress that shows nothing, such as a tool's input. A `Usage` in between
    tells what the call has cost so far, for the case that nobody waits for its end; it is no progress.
    """

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]: ...


class AsyncProvider(Protocol):
    """The same for asyncio."""

    def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]: ...
