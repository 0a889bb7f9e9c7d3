"""The server, and what it has seen."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.messages_api.answers import Event, events_of, message_of
from tests.support.messages_api.directives import respond_as_told
from tests.support.messages_api.model_list import Models
from tests.support.messages_api.prompt_cache import PromptCache
from tests.support.messages_api.scripts import Script, Tokens, input_of, output_tokens, usage_of
from tests.support.messages_api.validation import Invalid, validate

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
class Recorded:
    json: Any
    headers: Mapping[str, str]
    at: float


class Gone(Exception):
    """The client has left, the server is closing, or the script wants the connection ended."""


Responder = Callable[[Any], Script]


class MessagesApi:
    """The running server and what it has seen. Every attribute may be read from any thread."""

    def __init__(
        self, port: int = 0, responder: Responder | None = None, cache: PromptCache | None = None
    ) -> None:
        self.cache = cache or PromptCache()
        self.models = Models()
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

    def do_GET(self) -> None:
        """What it has of models; that costs nothing, and is not among the ``requests``."""
        models = self.server.api.models
        self._wait(models.delay)
        status, value = models.answer(self.path, self.headers)
        location = {"location": models.location} if models.location else {}
        with suppress(OSError):
            if isinstance(value, str):
                self._send_head(0, status, {"content-type": "text/html", "content-length": str(len(value))})
                self.wfile.write(value.encode())
            else:
                self._send_json(0, status, value, location)

    def _answer(self, api: MessagesApi, body: bytes) -> None:
        request = _parsed(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        number, responder = api.record(Recorded(request, headers, time.monotonic()))
        try:
            validate(self.path, headers, request)
        except Invalid as refusal:
            return self._send_error(number, Script(status=refusal.status, message=str(refusal)))
        script = responder(request)
        if script.status == 200:
            script = _with_cache(api.cache, headers, request, script)
            api.count(tokens=input_of(usage_of(script, request)))
        self._wait(script.delay)
        if script.status != 200:
            return self._send_error(number, script)
        events = list(events_of(script, request, number))
        if request.get("stream"):
            return self._send_stream(number, script, events)
        self._send_json(number, 200, message_of(script, request, number))
        api.count(tokens=Tokens(output=output_tokens(script)))

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

    def _send_stream(self, number: int, script: Script, events: list[Event]) -> None:
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


def _with_cache(cache: PromptCache, headers: Mapping[str, str], request: Any, script: Script) -> Script:
    """The same script with the input counted as by the cache, unless it says itself how much it was."""
    if script.input_tokens is not None:
        return script
    taken = cache.take(headers.get("x-api-key") or headers["authorization"], request)
    return replace(
        script,
        input_tokens=taken.plain,
        cache_read_tokens=taken.read,
        cache_creation_tokens=taken.written,
    )


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
