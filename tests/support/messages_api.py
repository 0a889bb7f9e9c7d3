"""A local server that speaks the Messages API, well or badly, as a script or the user's own text tells it.

In a test: ``with MessagesApi() as api: AnthropicProvider("key", api.url)``. By hand:
``python -m tests.support.messages_api --port 8081``.

Without a script the last user text decides. It is echoed, unless it holds directives:

    [[status:529]] [[retry-after:3]]    answer with an error
    [[hang:SECONDS]]                    silence before the first byte
    [[mute:SECONDS]]                    silence after the head of the response
    [[stall:SECONDS]]                   silence after the first piece
    [[slow:SECONDS]]                    a pause between pieces
    [[cut:N]] [[reset:N]]               end (FIN, RST) the connection after N bytes of body
    [[end-early]]                       a clean end of the body, without message_stop
    [[garbage]]                         the same after an event that is no JSON
    [[error-event:overloaded_error]]    the same after an error event
    [[stop:max_tokens]]                 another stop reason
    [[tool:name {"a": 1}]]              a tool call; may be repeated
"""

from __future__ import annotations

import argparse
import json
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Script:
    """How to answer one request. A tool is (name, input); an input that is a string goes out as it is."""

    pieces: tuple[str, ...] = ()
    tools: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    message: str = "scripted"
    retry_after: str | float | None = None
    location: str = ""
    fault: str = ""  # a directive that is a fault, such as "cut:120"
    delay: float = 0.0
    pause: float = 0.0
    stop_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    json: Any
    headers: Mapping[str, str]
    at: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the answers said they cost, as far as they were sent. Input includes the cached."""

    input: int = 0
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.input + other.input, self.output + other.output)


class Invalid(Exception):
    """A request that the real API refuses."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Gone(Exception):
    """The client has left, the server is closing, or the script wants the connection ended."""


Responder = Callable[[Any], Script]


class MessagesApi:
    """The running server and what it has seen. Every attribute may be read from any thread."""

    def __init__(self, port: int = 0, responder: Responder | None = None) -> None:
        self._changed = threading.Condition()
        self._responder = responder or respond_as_told
        self._requests: list[Recorded] = []
        self.in_progress = 0
        self.most_in_progress = 0
        self.tokens = Tokens()
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> MessagesApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection, also those that hang, and wait for their threads."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.end_connections()

    def respond_with(self, responder: Responder | Script | Iterable[Script]) -> None:
        """A function of the request, one script for all, or scripts to use up (then as by default)."""
        if isinstance(responder, Script):
            self._responder = lambda _: responder
        elif callable(responder):
            self._responder = responder
        else:
            scripts = iter(tuple(responder))  # of a tuple: its next() is safe among threads
            self._responder = lambda request: next(scripts, None) or respond_as_told(request)

    @property
    def requests(self) -> tuple[Recorded, ...]:
        with self._changed:
            return tuple(self._requests)

    @property
    def connections(self) -> int:
        """How many were ever opened."""
        return self._server.accepted

    @property
    def open_connections(self) -> int:
        return len(self._server.open)

    def wait_until(self, is_true: Callable[[MessagesApi], bool], timeout: float = 5.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: is_true(self), timeout)

    def record(self, request: Recorded) -> tuple[int, Responder]:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            return len(self._requests), self._responder

    def count(self, *, calls: int = 0, tokens: Tokens | None = None) -> None:
        with self._changed:
            self.in_progress += calls
            self.most_in_progress = max(self.most_in_progress, self.in_progress)
            self.tokens += tokens or Tokens()
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # the default of 5 refuses a burst of clients

    def __init__(self, address: tuple[str, int], api: MessagesApi) -> None:
        self.api = api
        self.accepted = 0
        self.open: dict[socket.socket, threading.Thread] = {}
        super().__init__(address, _Conversation)

    def process_request(self, request: Any, client_address: Any) -> None:
        worker = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), daemon=True
        )
        self.accepted += 1
        self.open[request] = worker
        worker.start()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.open.pop(request, None)
        self.api.count()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that leave in the middle are what this server is for

    def end_connections(self) -> None:
        for connection, worker in list(self.open.items()):
            with suppress(OSError):  # it may have ended by itself in the meantime
                connection.shutdown(socket.SHUT_RDWR)
            worker.join(5)


class _Conversation(BaseHTTPRequestHandler):
    """One connection: requests one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        api = self.server.api
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        api.count(calls=1)
        try:
            self._answer(api, body)
        except (Gone, OSError):
            self.close_connection = True
        finally:
            api.count(calls=-1)

    def _answer(self, api: MessagesApi, body: bytes) -> None:
        request = _parsed(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        number, responder = api.record(Recorded(request, headers, time.monotonic()))
        try:
            validate(self.path, headers, request)
        except Invalid as refusal:
            return self._send_error(number, Script(status=refusal.status, message=str(refusal)))
        script = responder(request)
        self._wait(script.delay)
        if script.status != 200:
            return self._send_error(number, script)
        events = list(events_of(script, request, number))
        if request.get("stream"):
            return self._send_stream(number, script, events)
        self._send_json(number, 200, message_of(script, request, number))
        api.count(tokens=Tokens(events[0].tokens.input, _output_tokens(script)))

    def _send_error(self, number: int, script: Script) -> None:
        kind = ERROR_TYPES.get(
            script.status, "api_error" if script.status >= 500 else "invalid_request_error"
        )
        error = {"type": "error", "error": {"type": kind, "message": script.message}}
        headers = {} if script.retry_after is None else {"retry-after": str(script.retry_after)}
        headers |= {"location": script.location} if script.location else {}
        self._send_json(number, script.status, error, headers)

    def _send_json(
        self, number: int, status: int, value: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(value).encode()
        self._send_head(number, status, {"content-length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _send_head(self, number: int, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("request-id", f"req_{number:06d}")
        for name, value in ({"content-type": "application/json"} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()

    def _send_stream(self, number: int, script: Script, events: list[_Event]) -> None:
        fault, _, argument = script.fault.partition(":")
        room = int(argument) if fault in ("cut", "reset") else None
        self._send_head(number, 200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        self._wait(float(argument) if fault == "mute" else 0.0)
        for event in events:
            room = self._send_chunk(event.data, room, reset=fault == "reset")
            self.server.api.count(tokens=event.tokens)
            if event.is_piece:
                self._wait(float(argument) if fault == "stall" else script.pause)
        if room is not None:
            self._end_connection(reset=fault == "reset")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, data: bytes, room: int | None, *, reset: bool) -> int | None:
        if room is not None and room < len(data):
            self.wfile.write(b"%x\r\n%s" % (len(data), data[:room]))
            self._end_connection(reset=reset)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        return None if room is None else room - len(data)

    def _end_connection(self, *, reset: bool) -> None:
        if reset:  # lingering for no time at all makes the kernel send RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        raise Gone

    def _wait(self, seconds: float) -> None:
        """Keeps silent that long, but not for a client that has left or a server that closes."""
        if seconds <= 0:
            return
        poll = select.poll()  # select.select() would fail with more than 1024 files open
        poll.register(self.connection, select.POLLIN)
        if poll.poll(seconds * 1000) and not self.connection.recv(1, socket.MSG_PEEK):
            raise Gone


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Event:
    data: bytes
    tokens: Tokens = Tokens()
    is_piece: bool = False


def events_of(script: Script, request: Any, number: int) -> Iterator[_Event]:
    """The server-sent events of the answer, in the order of the real API, with the script's fault in them."""
    fault, _, argument = script.fault.partition(":")
    start = message_of(replace(script, pieces=(), tools=()), request, number)
    start |= {"stop_reason": None, "usage": start["usage"] | {"output_tokens": 1}}
    yield _event("message_start", {"message": start}, Tokens(_input_tokens(start["usage"]), 1))
    for index, block in enumerate(_blocks(script)):
        yield from _block_events(index, block)
    if fault in ("end-early", "garbage", "error-event"):
        yield from _last_event(fault, argument)
        return
    usage = _usage(script, request)
    delta = {"delta": {"stop_reason": _stop_reason(script), "stop_sequence": None}, "usage": usage}
    yield _event("message_delta", delta, Tokens(0, usage["output_tokens"] - 1))
    yield _event("message_stop", {})


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[_Event]:
    empty = {"text": ""} if block["type"] == "text" else {"input": {}}
    shown = {name: value for name, value in block.items() if name != "pieces"}
    yield _event("content_block_start", {"index": index, "content_block": shown | empty})
    if index == 0:
        yield _event("ping", {})
    kind, name = ("text_delta", "text") if block["type"] == "text" else ("input_json_delta", "partial_json")
    for piece in block["pieces"]:
        delta = {"index": index, "delta": {"type": kind, name: piece}}
        yield replace(_event("content_block_delta", delta), is_piece=kind == "text_delta")
    yield _event("content_block_stop", {"index": index})


def _last_event(fault: str, argument: str) -> Iterator[_Event]:
    if fault == "garbage":
        yield _Event(b'event: content_block_delta\ndata: {"type": "content_bl\xff{{{\n\n')
    if fault == "error-event":
        yield _event("error", {"error": {"type": argument, "message": "scripted"}})


NO_TOKENS = Tokens()


def _event(kind: str, data: Mapping[str, Any], tokens: Tokens = NO_TOKENS) -> _Event:
    # Characters go out as they are, as from the real API, so that a cut may fall into the middle of one.
    shown = json.dumps({"type": kind, **data}, ensure_ascii=False)
    return _Event(f"event: {kind}\ndata: {shown}\n\n".encode(), tokens)


def _blocks(script: Script) -> list[dict[str, Any]]:
    """Content blocks with the pieces in which they are streamed."""
    blocks: list[dict[str, Any]] = [{"type": "text", "pieces": script.pieces}] if script.pieces else []
    for place, (name, sent) in enumerate(script.tools):
        raw = sent if isinstance(sent, str) else json.dumps(sent)
        halves = ("", raw[: len(raw) // 2], raw[len(raw) // 2 :])
        blocks.append({"type": "tool_use", "id": f"toolu_{place:02d}", "name": name, "pieces": halves})
    return blocks


def message_of(script: Script, request: Any, number: int) -> dict[str, Any]:
    """The whole answer, as the API gives it when it is not asked to stream."""
    content: list[dict[str, Any]] = []
    if script.pieces:
        content.append({"type": "text", "text": "".join(script.pieces)})
    for place, (name, sent) in enumerate(script.tools):
        content.append({"type": "tool_use", "id": f"toolu_{place:02d}", "name": name, "input": sent})
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": _stop_reason(script),
        "stop_sequence": None,
        "usage": _usage(script, request),
    }


def _stop_reason(script: Script) -> str:
    return script.stop_reason or ("tool_use" if script.tools else "end_turn")


def count_tokens(text: str) -> int:
    return len(text) // 4 + 1


def _usage(script: Script, request: Any) -> dict[str, int]:
    asked = json.dumps([request.get("system"), request["messages"], request.get("tools")], sort_keys=True)
    return {
        "input_tokens": count_tokens(asked) if script.input_tokens is None else script.input_tokens,
        "cache_read_input_tokens": script.cache_read_tokens,
        "cache_creation_input_tokens": script.cache_creation_tokens,
        "output_tokens": _output_tokens(script),
    }


def _output_tokens(script: Script) -> int:
    said = "".join(script.pieces) + "".join(f"{name}{sent}" for name, sent in script.tools)
    return count_tokens(said) if script.output_tokens is None else script.output_tokens


def _input_tokens(usage: Mapping[str, int]) -> int:
    return sum(count for name, count in usage.items() if name != "output_tokens")


def respond_as_told(request: Any) -> Script:
    """The default: tool results are repeated, texts are echoed, directives in them are obeyed."""
    blocks = _content(request["messages"][-1])
    if results := [_text_of(block) for block in blocks if block["type"] == "tool_result"]:
        return Script(pieces=_words("The tool said: " + "; ".join(results)))
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    plain, tools = _without_tools(text)
    script = Script(tools=tools)
    for name, argument in DIRECTIVE.findall(plain):
        script = _obeyed(script, name, argument)
    said = DIRECTIVE.sub("", plain).strip()
    return replace(script, pieces=_words(f"You said: {said}")) if said or not tools else script


DIRECTIVE = re.compile(r"\[\[([a-z-]+)(?::([^\]]*))?\]\]")
TOOL = re.compile(r"\[\[tool:([\w-]+)\s*")


def _obeyed(script: Script, name: str, argument: str) -> Script:
    match name:
        case "status":
            return replace(script, status=int(argument))
        case "retry-after":
            return replace(script, retry_after=argument)
        case "hang":
            return replace(script, delay=float(argument or 3600))
        case "slow":
            return replace(script, pause=float(argument))
        case "stop":
            return replace(script, stop_reason=argument)
        case "cut" | "reset" | "mute" | "stall" | "end-early" | "garbage" | "error-event":
            return replace(script, fault=f"{name}:{argument}")
    return script


def _without_tools(text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """JSON may hold brackets of its own, so a pattern alone cannot find where a tool directive ends."""
    plain, tools, at = "", [], 0
    while found := TOOL.search(text, at):
        sent, end = {}, found.end()
        if not text.startswith("]]", end):
            sent, end = json.JSONDecoder().raw_decode(text, end)
        tools.append((found[1], sent))
        plain, at = plain + text[at : found.start()], text.index("]]", end) + 2
    return plain + text[at:], tuple(tools)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+\s*", text))


def validate(path: str, headers: Mapping[str, str], request: Any) -> None:
    """Refuses what the real API refuses, as far as a client of ours could get it wrong."""
    # Either is taken; which of the two the SDK sends for an api_key depends on its version.
    if not headers.get("x-api-key") and not headers.get("authorization", "").startswith("Bearer "):
        raise Invalid("x-api-key header is required", 401)
    if urlsplit(path).path != "/v1/messages":  # whoever takes this server for a proxy sends the whole URL
        raise Invalid("Not found", 404)
    if not headers.get("anthropic-version"):
        raise Invalid("anthropic-version: header is required")
    if not isinstance(request, dict):
        raise Invalid("The request body is not valid JSON")
    for field in ("model", "max_tokens", "messages"):
        if not request.get(field):
            raise Invalid(f"{field}: Field required")
    if "system" in request and not request["system"]:
        raise Invalid("system: text content blocks must be non-empty")
    names = [tool["name"] for tool in request.get("tools", ())]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name) for name in names):
        raise Invalid("tools: names must be unique and match '^[a-zA-Z0-9_-]{1,128}$'")
    _validate_messages(request["messages"])


def _validate_messages(messages: list[dict[str, Any]]) -> None:
    if messages[0].get("role") != "user":
        raise Invalid("messages: first message must use the user role")
    open_calls: set[str] = set()
    for place, message in enumerate(_merged(messages)):
        where = f"messages.{place}"
        if message["role"] not in ("user", "assistant"):
            raise Invalid(f"{where}: role must be user or assistant")
        for block in message["content"]:
            _validate_block(f"{where}.content", block, open_calls)
        results = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if missing := open_calls - results:
            raise Invalid(f"{where}: `tool_use` ids without `tool_result` blocks after: {sorted(missing)}")
        open_calls = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    if open_calls:
        raise Invalid("messages: `tool_use` ids were found without `tool_result` blocks immediately after")


def _validate_block(where: str, block: Mapping[str, Any], open_calls: set[str]) -> None:
    match block["type"]:
        case "text" if not block["text"].strip():
            raise Invalid(f"{where}: text content blocks must contain non-whitespace text")
        case "tool_result" if block["tool_use_id"] not in open_calls:
            raise Invalid(f"{where}: unexpected `tool_use_id` found in `tool_result` blocks")
        case "tool_use" if not isinstance(block["input"], dict):
            raise Invalid(f"{where}.tool_use.input: Input should be a valid dictionary")


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The API takes messages of one role in a row for one message."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if not message.get("content"):
            raise Invalid("messages: all messages must have non-empty content")
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += _content(message)
        else:
            merged.append({"role": message.get("role"), "content": _content(message)})
    return merged


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _text_of(result: Mapping[str, Any]) -> str:
    content = result.get("content", "")
    return content if isinstance(content, str) else " ".join(block.get("text", "") for block in content)


def main() -> None:
    parser = argparse.ArgumentParser(description="A local server that speaks the Messages API.")
    parser.add_argument("--port", type=int, default=8081)
    with MessagesApi(parser.parse_args().port) as api:
        print(f"Messages API on {api.url}; Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
