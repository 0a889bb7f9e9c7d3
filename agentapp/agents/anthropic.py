"""Claude as a provider: a `ModelCall` becomes a Messages API request, its stream text and a `Reply`."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import anthropic
import httpx2
from anthropic import AsyncStream, Stream

from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, Usage
from agentapp.errors import ProviderBusy, ProviderError, ProviderGarbled, ProviderRejected, ProviderTimeout

DEFAULT_BASE_URL = "https://api.anthropic.com"
CONNECT_TIMEOUT = 5.0
# The API counts what it read from or wrote to its cache apart from the other input.
TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

C = TypeVar("C")

log = logging.getLogger(__name__)


class AnthropicProvider:
    """Give it a key (and the address, when it is not the public one), or a ready client that stays yours."""

    def __init__(
        self, api_key: str = "", base_url: str | None = None, *, client: anthropic.Anthropic | None = None
    ) -> None:
        self._key, make = _secret(api_key, client), _maker(anthropic.Anthropic, api_key, base_url)
        self._clients = Kept(
            lambda: make(http_client=anthropic.DefaultHttpxClient(follow_redirects=False)),
            client and client.with_options(max_retries=0),
        )

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        answer = Assembler()
        try:
            client = self._clients.get(os.getpid())
            with client.messages.create(**request_for(call), stream=True) as stream:
                for event in Stream.raw_events(stream.response):
                    yield answer.feed(event.data)
            answer.end()
        except Exception as exc:
            if not answer.complete:
                raise answer.failed(exc, self._key) from exc
        yield answer.reply()

    def close(self) -> None:
        if (client := self._clients.drop(os.getpid())) is not None:
            client.close()


class AsyncAnthropicProvider:
    """The same for asyncio. Connections belong to an event loop, so each loop gets a client of its own."""

    def __init__(
        self,
        api_key: str = "",
        base_url: str | None = None,
        *,
        client: anthropic.AsyncAnthropic | None = None,
    ) -> None:
        self._key, make = _secret(api_key, client), _maker(anthropic.AsyncAnthropic, api_key, base_url)
        self._clients = Kept(
            lambda: make(http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False)),
            client and client.with_options(max_retries=0),
        )

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Reply]:
        answer = Assembler()
        try:
            client = self._clients.get((os.getpid(), asyncio.get_running_loop()))
            async with await client.messages.create(**request_for(call), stream=True) as stream:
                async for event in AsyncStream.raw_events(stream.response):
                    yield answer.feed(event.data)
            answer.end()
        except Exception as exc:
            if not answer.complete:
                raise answer.failed(exc, self._key) from exc
        yield answer.reply()

    async def close(self) -> None:
        if (client := self._clients.drop((os.getpid(), asyncio.get_running_loop()))) is not None:
            await client.close()


class Kept(Generic[C]):
    """A client made at first use and kept for its owner only: a fork must not share its parent's sockets.

    An inherited client is dropped, not closed: closing takes locks that a thread of the parent may have held.
    """

    def __init__(self, make: Callable[[], C], ready: C | None = None) -> None:
        self._make, self._ready = make, ready
        self._lock = threading.Lock()
        self._made: tuple[object, C] | None = None

    def get(self, owner: object) -> C:
        if self._ready is not None:
            return self._ready
        with self._lock:
            if self._made is None or self._made[0] != owner:
                self._made = owner, self._make()
            return self._made[1]

    def drop(self, owner: object) -> C | None:
        """What ``get`` made for this owner, for the caller to close."""
        with self._lock:
            made, self._made = self._made, None
        return made[1] if made is not None and made[0] == owner else None


def _maker(kind: Callable[..., C], api_key: str, base_url: str | None) -> Callable[..., C]:
    def make(**options: Any) -> C:
        key = api_key.strip()
        # Such a key cannot be a header value, and the error that says so would quote it.
        if not key or not key.isascii() or not key.isprintable():
            raise UnusableKey
        # Retries are ours, above. Spans are off because the SDK's would miss the events read past it.
        return kind(
            api_key=key, base_url=base_url or DEFAULT_BASE_URL, max_retries=0, open_telemetry=False, **options
        )

    return make


def _secret(api_key: str, client: anthropic.Anthropic | anthropic.AsyncAnthropic | None) -> str:
    return (client.api_key or "" if client is not None else api_key).strip()


def request_for(call: ModelCall) -> dict[str, Any]:
    """The arguments of ``messages.create``, without blank texts and empty messages: the API refuses them."""
    messages = [{"role": m.role, "content": content} for m in call.messages if (content := list(_blocks(m)))]
    request: dict[str, Any] = {
        "model": call.model,
        "max_tokens": call.max_tokens,
        "messages": messages,
        "timeout": httpx2.Timeout(call.timeout, connect=min(CONNECT_TIMEOUT, call.timeout)),
    }
    if call.system.strip():
        request["system"] = call.system
    if call.tools:
        request["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)}
            for t in call.tools
        ]
    return request


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    # Results come first: the API wants them at the head of the message that follows the calls.
    for result in message.results:
        block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.content or "(empty)"}
        yield block | ({"is_error": True} if result.is_error else {})
    for text in message.texts:
        if text.strip():
            yield {"type": "text", "text": text}
    for call in message.calls:
        sent = dict(call.input) if isinstance(call.input, Mapping) else {"input": call.input}
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": sent}


class Assembler:
    """Puts an answer together from the data of its server-sent events, one after the other.

    It is fed the raw events because the SDK's own iterator keeps the pings to itself.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None  # None until the API said that it started
        self._counts: dict[str, int] = {}
        self._texts: list[str] = []
        self._calls: dict[int, tuple[ToolCall, list[str]]] = {}
        self._stop_reason = ""
        self._stopped = False

    @property
    def complete(self) -> bool:
        return self._stopped and bool(self._stop_reason)

    def feed(self, data: str) -> str:
        """The text that this event adds to the answer; most add none."""
        if not data or self._stopped:
            return ""
        event = json.loads(data)
        match event["type"]:
            case "message_start":
                self._count(event["message"]["usage"])
            case "content_block_start":
                return self._start_block(event["index"], event["content_block"])
            case "content_block_delta":
                return self._extend_block(event["index"], event["delta"])
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason") or ""
                self._count(event.get("usage") or {})
            case "message_stop":
                self._stopped = True
            case "error":
                raise ErrorEvent(str(event["error"]["type"]), str(event["error"].get("message")))
        return ""

    def end(self) -> None:
        """Call it when the stream ended without an error, which alone does not mean that it is whole."""
        if not self.complete:
            raise CutShort("the stream ended before the answer did")

    def reply(self) -> Reply:
        calls = tuple(_with_input(call, "".join(parts)) for _, (call, parts) in sorted(self._calls.items()))
        return Reply("".join(self._texts), calls, self.usage or Usage(model_calls=1), self._stop_reason)

    def failed(self, exc: Exception, key: str) -> ProviderError:
        error = translated(exc, self.usage, key)
        error.said_something = any(self._texts)
        return error

    def _start_block(self, index: int, block: Mapping[str, Any]) -> str:
        if block["type"] == "tool_use":
            call = ToolCall(str(block["id"]), str(block["name"]), block.get("input") or {})
            self._calls[index] = call, []
        return self._add_text(block["text"]) if block["type"] == "text" else ""

    def _extend_block(self, index: int, delta: Mapping[str, Any]) -> str:
        # Server tools stream their input too, but their calls are not for us to answer.
        if delta["type"] == "input_json_delta" and index in self._calls:
            self._calls[index][1].append(delta["partial_json"])
        return self._add_text(delta["text"]) if delta["type"] == "text_delta" else ""

    def _add_text(self, text: str) -> str:
        self._texts.append(text + "")  # TypeError here, not in the reader, when it is no text
        return text

    def _count(self, usage: Mapping[str, Any]) -> None:
        # Counts are totals so far, and an event names only those it knows: a later one replaces an earlier.
        self._counts |= {name: int(usage[name]) for name in TOKENS if usage.get(name) is not None}
        output = self._counts.get("output_tokens", 0)
        self.usage = Usage(sum(self._counts.values()) - output, output, model_calls=1)


def _with_input(call: ToolCall, sent: str) -> ToolCall:
    if not sent:
        return call
    try:
        return ToolCall(call.id, call.name, json.loads(sent))
    except (ValueError, RecursionError):  # the tool layer tells the model what was wrong with it
        return ToolCall(call.id, call.name, sent)


class UnusableKey(Exception):
    """There is no API key, or it is not one line of plain characters."""


class CutShort(Exception):
    pass


class ErrorEvent(Exception):
    """The API reported an error inside a stream that had begun well."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


SENTENCES: Mapping[type[ProviderError], str] = {
    ProviderBusy: "The model provider is busy or cannot be reached right now; please try again in a moment.",
    ProviderTimeout: "The model provider did not answer in time; please try again.",
    ProviderRejected: "The model provider did not accept the request, and asking again will not help.",
    ProviderGarbled: "The answer of the model provider was cut off or could not be read; please try again.",
}
ERROR_TYPES: Mapping[str, type[ProviderError]] = {
    "overloaded_error": ProviderBusy,
    "api_error": ProviderBusy,
    "rate_limit_error": ProviderBusy,
    "timeout_error": ProviderBusy,
    "invalid_request_error": ProviderRejected,
    "authentication_error": ProviderRejected,
    "billing_error": ProviderRejected,
    "permission_error": ProviderRejected,
    "not_found_error": ProviderRejected,
    "request_too_large": ProviderRejected,
}
# Nothing was sent, and nothing will be until the settings are corrected.
MISCONFIGURED = (
    UnusableKey,
    anthropic.CredentialsError,
    httpx2.LocalProtocolError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
UNREACHED = (
    *MISCONFIGURED,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
)


def translated(exc: Exception, spent: Usage | None, key: str = "") -> ProviderError:
    """Our error for any exception at all. What is only for the operator goes to the log, without the key."""
    chain = _chain(exc)
    for link in chain:
        link.args = tuple(_without(key, arg) for arg in link.args)
    ours = _class_for(exc, chain)
    reached = not any(isinstance(link, UNREACHED) for link in chain)
    status, request_id = getattr(exc, "status_code", None), getattr(exc, "request_id", None)
    told = " <- ".join(f"{type(link).__name__}: {link}" for link in chain)
    log.warning("model call failed: status=%s request_id=%s %.500r", status, request_id, _without(key, told))
    wait = retry_after_of(exc, time.time()) if ours is ProviderBusy else None
    return ours(SENTENCES[ours], usage=spent or Usage(model_calls=int(reached)), retry_after=wait)


def _class_for(exc: Exception, chain: Iterable[BaseException]) -> type[ProviderError]:
    match exc:
        case anthropic.APITimeoutError() | httpx2.TimeoutException() | TimeoutError():
            return ProviderTimeout
        case ErrorEvent():
            return ERROR_TYPES.get(exc.kind, ProviderGarbled)
        case anthropic.APIStatusError():
            return _class_for_status(exc.response.status_code, str(exc.type))
    if any(isinstance(link, MISCONFIGURED) for link in chain):
        return ProviderRejected
    if isinstance(exc, (anthropic.APIConnectionError, httpx2.ConnectError, httpx2.ProxyError)):
        return ProviderBusy
    return ProviderGarbled


def _class_for_status(status: int, error_type: str) -> type[ProviderError]:
    if status == 408:
        return ProviderTimeout
    if status == 429 or status >= 500:
        return ProviderBusy
    # A redirect is not followed, since the key would go along: the configured address is wrong.
    return ProviderRejected if status >= 300 else ERROR_TYPES.get(error_type, ProviderGarbled)


def retry_after_of(exc: Exception, now: float) -> float | None:
    """Seconds from ``now``. The header gives them as such or as a date; what is neither counts as absent."""
    response = getattr(exc, "response", None)
    header = response.headers.get("retry-after", "") if response is not None else ""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _chain(exc: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while exc is not None and exc not in links:
        links.append(exc)
        exc = exc.__cause__
    return links


def _without(key: str, value: Any) -> Any:
    return value.replace(key, "***") if key and isinstance(value, str) else value
