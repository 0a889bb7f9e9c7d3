"""What a model is to the agents: frozen values that go in and come out, and the two protocols."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
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


class Line:
    """How a model call is ended by another thread than the one that listens to it.

    A provider that knows how to do so says it with ``opened``, as often as it changes, and says
    ``released`` once there is nothing left to end. One that does not is simply read no further.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung_up = threading.Event()
        self._end: Callable[[], object] | None = None

    @property
    def is_hung_up(self) -> bool:
        return self._hung_up.is_set()

    def opened(self, end: Callable[[], object]) -> None:
        """``end`` is called at once if the line was hung up before, on whichever thread it is."""
        with self._lock:
            if not self.is_hung_up:
                self._end = end
                return
        end()

    def released(self) -> None:
        with self._lock:
            self._end = None

    def hang_up(self) -> None:
        with self._lock:
            self._hung_up.set()
            end, self._end = self._end, None
        if end is not None:
            end()

    def wait(self, seconds: float) -> None:
        """Sleep that long, or until somebody hangs up."""
        self._hung_up.wait(seconds)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to a model. ``timeout`` bounds the silence before the first and between any two pieces."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    timeout: float = 30.0
    line: Line = field(default_factory=Line, compare=False, repr=False)


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
