"""What a model is to the agents: values in and out, how a call is cancelled, the two protocols."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from agentapp.agents.meter import Meter, size_of, tokens_in
from agentapp.events import Usage
from agentapp.isolation import RequestScope

T = TypeVar("T")


class Cancellation:
    """Belongs to one model call. Any thread may cancel it, once and for good.

    A provider that can end its call early says how with ``on_cancel``, again whenever the way changes, and
    calls ``clear`` once there is nothing left to end. The answer of one that cannot is read no further.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._action: Callable[[], object] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def on_cancel(self, action: Callable[[], object]) -> None:
        """Have ``action`` called by ``cancel``, instead of any earlier one.

        If the call is cancelled already, it is called at once, on the current thread.
        """
        with self._lock:
            if not self.is_cancelled:
                self._action = action
                return
        action()

    def clear(self) -> None:
        """Have nothing called by ``cancel``."""
        with self._lock:
            self._action = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled.set()
            action, self._action = self._action, None
        if action is not None:
            action()

    def wait(self, seconds: float) -> None:
        """Sleep that long, or until the call is cancelled."""
        self._cancelled.wait(seconds)


class Waiting(Protocol):
    """How a call waits that is read by the very thread that plays the turn: never for long at a time, so that
    the thread can look after everything else meanwhile. `Provider` says which providers wait like this.
    """

    def wait_for(self, attempt: Callable[[float], T]) -> T:
        """What ``attempt`` returns. It may take as many seconds as it is given; then it raises
        `TimeoutError` and is called again. Raises `TimeoutError` itself once the call is cancelled.
        """


Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. ``size`` is about how many bytes that are: every call counts them."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        schema = json.dumps(dict(self.input_schema), default=str)
        object.__setattr__(self, "size", size_of(f"{self.name} {self.description} {schema}"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``input`` is what the model sent: it is not checked yet, and it is not always an object."""

    id: str
    name: str
    input: Any


@dataclass(frozen=True, slots=True)
class ToolResult:
    """``scope`` is what the tool has worked for; None if it did not run. ``ended_ns`` is when it returned, if
    it did.
    """

    call_id: str
    content: str
    is_error: bool = False
    scope: RequestScope | None = field(default=None, compare=False, repr=False)
    ended_ns: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """A user message carries texts and tool results, an assistant message texts and tool calls."""

    role: Role
    texts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes the model is sent of it."""
        size = sum([size_of(text) for text in self.texts])
        if self.calls or self.results:
            size += sum(size_of(f"{call.name} {call.input}") for call in self.calls)
            size += sum(size_of(result.content) for result in self.results)
        return size


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One question to a model.

    ``timeout`` is the longest silence in seconds, before the first piece and between any two pieces.
    ``waiting`` is given only to a provider that reads in place.
    """

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    timeout: float = 30.0
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    waiting: Waiting | None = field(default=None, compare=False, repr=False)

    def sleep(self, seconds: float) -> None:
        """Sleep that long, or until the call is cancelled."""
        if self.waiting is None:
            self.cancellation.wait(seconds)
            return
        wakes = time.monotonic() + seconds

        def sleep_for(longest: float) -> None:
            self.cancellation.wait(min(longest, wakes - time.monotonic()))
            if time.monotonic() < wakes:
                raise TimeoutError

        with suppress(TimeoutError):
            self.waiting.wait_for(sleep_for)


def estimated_input(system: str, messages: Iterable[Message], tools: Iterable[ToolSpec]) -> int:
    """About how many tokens a call with these takes in."""
    said = sum([message.size for message in messages])
    return tokens_in(size_of(system) + said + sum([tool.size for tool in tools]))


@dataclass(frozen=True, slots=True)
class Reply:
    """The finished answer to a `ModelCall`. ``text`` is exactly the streamed pieces joined."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = "end_turn"


class Provider(Protocol):
    """Streams pieces of text, then the `Reply` as the last item. Raises only `ProviderError`.

    It calls ``call.meter.sent()`` when the request leaves: from then on its input is charged, whatever ends
    it. What it hears and does not stream, such as a tool's input, it passes to ``call.meter.heard()``.
    An empty piece says that the model is at work on something that is not shown, such as a tool's input; it
    restarts the silence deadline. A `Usage` in between says what the call has cost so far, in case it is
    ended before its `Reply`; it does not restart the deadline.

    Its answer is read on a thread of its own, so that it may block for as long as it likes. One that has an
    attribute ``reads_in_place`` which is true saves that thread: it promises that it waits only by
    ``call.waiting`` and ``call.sleep()``, and that a cancelled call ends at once.
    """

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]: ...


class AsyncProvider(Protocol):
    """The same for asyncio. Cancelling the task that reads the stream ends the call."""

    def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]: ...
