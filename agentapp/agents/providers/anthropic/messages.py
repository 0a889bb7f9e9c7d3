"""The format of the Messages API, both ways: a `ModelCall` as a request, and events as a `Reply`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx2

from agentapp.agents.meter import Meter, size_of, tokens_in
from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, ToolResult
from agentapp.agents.providers.anthropic.errors import CutShort, ErrorEvent, translate_error
from agentapp.errors import ProviderError
from agentapp.events import Usage

CONNECT_TIMEOUT = 5.0
# The API counts what it read from or wrote to its cache apart from the other input.
CACHE_READ, CACHE_WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"
# As the SDK writes it, for what it is made of here.
write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_read_json = json.JSONDecoder().raw_decode
TOKEN_COUNTS = ("input_tokens", CACHE_READ, CACHE_WRITTEN, "output_tokens")


def request_for(call: ModelCall, prompt_cache: bool = True) -> dict[str, Any]:
    """The arguments of ``messages.create``, without blank texts and empty messages: the API refuses them."""
    messages = [{"role": m.role, "content": content} for m in call.messages if (content := _blocks(m))]
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
    if prompt_cache:
        _mark_for_cache(request)
    return request


def _mark_for_cache(request: dict[str, Any]) -> None:
    """Have the API keep what later calls will send again, and look for what earlier ones have left.

    It keeps what comes before a mark (tools, instructions, messages, in this order) for five minutes after it
    was used last, and takes four marks at most. They are at the end of:

    - the instructions, for the user's other chats;
    - what the person said last, for the next turn: what tools and colleagues said after that is not in it;
    - the last message but one of that side, which was the end of the call before. The API would find it by
      itself, but not if more than twenty blocks came after it, as of many tools called at once;
    - the last message, for the next call of this turn.

    There is no mark on the tools alone: they are the same for all users. See "The provider's cache" in
    docs/security.md.
    """
    if "system" in request:
        request["system"] = [{"type": "text", "text": request["system"]}]
        _mark(request["system"][-1])
    contents = [message["content"] for message in request["messages"] if message["role"] == "user"]
    for content in contents[-2:]:
        _mark(content[-1])
    said = (text for content in reversed(contents) for text in content if text["type"] == "text")
    if (last := next(said, None)) is not None:
        _mark(last)


def _mark(block: dict[str, Any]) -> None:
    block["cache_control"] = {"type": "ephemeral"}


def _blocks(message: Message) -> list[dict[str, Any]]:
    texts = [{"type": "text", "text": text} for text in message.texts if text and not text.isspace()]
    if not message.results and not message.calls:
        return texts
    # Results come first: the API wants them at the head of the message that follows the calls.
    return [*map(_result_block, message.results), *texts, *map(_call_block, message.calls)]


def _result_block(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.content or "(empty)"}
    return block | ({"is_error": True} if result.is_error else {})


def _call_block(call: ToolCall) -> dict[str, Any]:
    sent = dict(call.input) if isinstance(call.input, Mapping) else {"input": call.input}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": sent}


class Assembler:
    """Puts an answer together from the data of its server-sent events, one after the other.

    It takes the raw events because the SDK's own iterator does not pass on the pings, and a ping is the
    moment to notice that nothing else has come for too long.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sent = False
        self._heard_bytes = 0
        self.usage: Usage | None = None  # None until the API said that it started
        self._counts: dict[str, int] = {}
        self._said_output = False  # not at its start, where a count is only a beginning, but at its end
        self._texts: list[str] = []
        self._calls: dict[int, tuple[ToolCall, list[str]]] = {}
        self._stop_reason = ""
        self._stopped = False

    @property
    def complete(self) -> bool:
        return self._stopped and bool(self._stop_reason)

    def sent(self) -> None:
        """The request leaves. This may be called several times."""
        if not self._sent:
            self._sent = True
            self._meter.sent()

    def feed(self, data: str) -> str | Usage | None:
        """The text that this event adds to the answer, which is empty for other content; or the usage so far,
        if the event reports it; or None if it does neither.
        """
        if not data or self._stopped:
            return None
        event = _parsed(data)
        match event["type"]:
            case "message_start":
                # No request is without input: a gateway that begins with a zero may say it at the end.
                return self._count({name: n for name, n in event["message"]["usage"].items() if n})
            case "content_block_start":
                return self._start_block(event["index"], event["content_block"])
            case "content_block_delta":
                return self._extend_block(event["index"], event["delta"])
            case "content_block_stop":
                return ""
            case "message_delta":
                self._stop_reason = event["delta"].get("stop_reason") or ""
                usage = event.get("usage") or {}
                self._said_output = self._said_output or usage.get("output_tokens") is not None
                return self._count(usage)
            case "message_stop":
                self._stopped = True
            case "error":
                raise ErrorEvent(str(event["error"]["type"]), str(event["error"].get("message")))
        return None

    def check_complete(self) -> None:
        """For a stream that ended without an error. Raises if the answer is not whole all the same."""
        if not self.complete:
            raise CutShort("the stream ended before the answer did")

    def reply(self) -> Reply:
        calls = tuple(_with_input(call, "".join(parts)) for _, (call, parts) in sorted(self._calls.items()))
        usage = self._with_heard(self.usage or self._meter.estimate)
        return Reply("".join(self._texts), calls, usage, self._stop_reason)

    def translate_error(self, exc: Exception, key: str, model: str = "") -> ProviderError:
        spent = self.usage and self._with_heard(self.usage)
        error = translate_error(exc, spent, self._meter.estimate, key, model)
        error.said_something = any(self._texts)
        return error

    def _start_block(self, index: int, block: Mapping[str, Any]) -> str:
        if block["type"] == "tool_use":
            call = ToolCall(str(block["id"]), str(block["name"]), block.get("input") or {})
            self._calls[index] = call, []
        return self._add_text(block["text"]) if block["type"] == "text" else ""

    def _extend_block(self, index: int, delta: Mapping[str, Any]) -> str:
        # Server tools stream their input too, but their calls are not for us to answer.
        match delta["type"]:
            case "text_delta":
                return self._add_text(delta["text"])
            case "input_json_delta":
                self._hear_hidden(delta["partial_json"])
                if index in self._calls:
                    self._calls[index][1].append(delta["partial_json"])
            case "thinking_delta":
                self._hear_hidden(delta["thinking"])
        return ""

    def _add_text(self, text: str) -> str:
        self._texts.append(text + "")  # TypeError here, not in the reader, when it is no text
        self._heard_bytes += size_of(text)
        return text

    def _hear_hidden(self, text: str) -> None:
        """The reader of the stream sees only the text of the answer, so the rest is counted here."""
        self._heard_bytes += size_of(text)
        self._meter.heard(text)

    def _with_heard(self, usage: Usage) -> Usage:
        """The API says how much came out only at the end. If it did, that is the truth. Otherwise it is what
        was heard: the answer did not get there, or a gateway left the last count out.
        """
        if self._said_output:
            return usage
        return replace(usage, output_tokens=max(usage.output_tokens, tokens_in(self._heard_bytes)))

    def _count(self, usage: Mapping[str, Any]) -> Usage:
        # Counts are totals so far, and an event names only those it knows: a later one replaces an earlier.
        self._counts |= {name: int(usage[name]) for name in TOKEN_COUNTS if usage.get(name) is not None}
        said = [count for name, count in self._counts.items() if name != "output_tokens"]
        self.usage = Usage(
            sum(said) if said else self._meter.estimate.input_tokens,
            self._counts.get("output_tokens", 0),
            model_calls=1,
            cache_read_tokens=self._counts.get(CACHE_READ, 0),
            cache_write_tokens=self._counts.get(CACHE_WRITTEN, 0),
        )
        return self.usage


def _parsed(data: str) -> Any:
    """``json.loads``, without the half of its time that it takes to look for white space around a value."""
    try:
        value, end = _read_json(data)
    except ValueError:
        return json.loads(data)
    return value if end == len(data) else json.loads(data)


def joined(pieces: Iterator[str | Usage | None]) -> Iterator[str | Usage]:
    """The pieces that came together, with texts that follow each other as one, and without what is None.

    If the pieces end with an error, what came before it comes first.
    """
    texts: list[str] = []
    failure: Exception | None = None
    while True:
        try:
            piece = next(pieces)
        except StopIteration:
            break
        except Exception as exc:
            failure = exc
            break
        if isinstance(piece, str):
            texts.append(piece)
        elif piece is not None:
            if texts:
                yield "".join(texts)
                texts = []
            yield piece
    if texts:
        yield "".join(texts)
    if failure is not None:
        raise failure


def _with_input(call: ToolCall, sent: str) -> ToolCall:
    if not sent:
        return call
    try:
        return ToolCall(call.id, call.name, json.loads(sent))
    except (ValueError, RecursionError):  # the tool layer tells the model what was wrong with it
        return ToolCall(call.id, call.name, sent)
