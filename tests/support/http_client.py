"""An HTTP client of the real server: with cookies, forms and event streams; every byte that comes is kept."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.users import csrf_of


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def everything(self) -> bytes:
        """Head and body: nothing of somebody else may be in either."""
        head = "\n".join(f"{name}: {value}" for name, value in self.headers.items())
        return head.encode() + b"\n\n" + self.body


@dataclass
class Visitor:
    """Not for use by two threads at once."""

    url: str
    timeout: float = 60.0
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str = ""

    def get(self, path: str, accept: str = "text/html") -> Answer:
        return self._ask("GET", path, accept)

    def post(self, path: str, accept: str = "text/html", **data: str) -> Answer:
        return self._ask("POST", path, accept, urlencode({"csrf_token": self.csrf, **data}))

    def sign_in(self, name: str, password: str) -> None:
        self.csrf = csrf_of(self.get("/login").text)
        answer = self.post("/login", username=name, password=password)
        assert answer.status == 303, answer.text
        self.csrf = csrf_of(self.get("/chat").text)

    def new_chat(self) -> str:
        answer = self.post("/chat")
        assert answer.status == 303, answer.text
        return answer.headers["Location"].rsplit("/", 1)[1]

    def send(self, chat: str, message: str, accept: str = "application/json") -> Answer:
        return self.post(f"/chat/{chat}/messages", accept, message=message)

    def _ask(self, method: str, path: str, accept: str, body: str | None = None) -> Answer:
        where = urlsplit(self.url)
        connection = HTTPConnection(where.hostname or "", where.port, timeout=self.timeout)
        try:
            headers = {"Accept": accept, "Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
            if body is not None:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("Set-Cookie") or ():
                found = re.match(r"([^=;]+)=([^;]*)", cookie)
                if found:
                    self.cookies[found[1]] = found[2]
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()


class Broken(Exception):
    """The connection ended before the answer did. Silence that lasts is a `TimeoutError` instead."""


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    kind: str
    data: dict[str, Any]
    at: float  # by the monotonic clock


class Stream(Iterator[Event]):
    """An answer read event by event as it comes, on a connection of its own; it may be left at any point.

    Making one sends the request and waits for the head. An answer that is no event stream has no
    events: all of it is in ``body``.
    """

    def __init__(
        self,
        visitor: Visitor,
        path: str,
        form: Mapping[str, str] | None = None,
        *,
        accept: str = "text/event-stream",
        after: int | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.body = b""
        self.retry: int | None = None  # milliseconds after which the server wants to be asked again
        self._unparsed = b""
        where = urlsplit(visitor.url)
        self._connection = HTTPConnection(where.hostname or "", where.port, timeout=visitor.timeout)
        headers = {"Accept": accept, "Cookie": "; ".join(f"{k}={v}" for k, v in visitor.cookies.items())}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        body = None
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode({"csrf_token": visitor.csrf, **form})
        with self._unbroken():
            self._connection.sock = _connected(self._connection, receive_buffer)
            self.port: int = self._connection.sock.getsockname()[1]
            self._connection.request("GET" if form is None else "POST", path, body, headers)
            self._answer = self._connection.getresponse()
            self.status, self.headers = self._answer.status, dict(self._answer.headers.items())
            self.is_events = self.headers.get("Content-Type", "").startswith("text/event-stream")
            if not self.is_events:
                self.body = self._answer.read()

    def __next__(self) -> Event:
        while self.is_events:
            block, found, rest = self._unparsed.partition(b"\n\n")
            if found:
                self._unparsed = rest
                if event := _event(block):
                    self.events.append(event)
                    return event
                if block.startswith(b"retry: "):
                    self.retry = int(block.splitlines()[0].removeprefix(b"retry: "))
                continue
            with self._unbroken():
                more = self._answer.read1(65536)
            if not more:
                break
            self._unparsed += more
        self.leave()
        raise StopIteration

    def upto(self, count: int) -> Stream:
        """Read until so many events have come, or the last."""
        while len(self.events) < count and next(self, None) is not None:
            pass
        return self

    def rest(self) -> Stream:
        for _ in self:
            pass
        return self

    def leave(self) -> None:
        """Close the connection, whatever may still come."""
        self._connection.close()

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.data["text"] for event in self.events if event.kind == "text")

    @property
    def turn_id(self) -> str | None:
        told = [event.data for event in self.events if event.kind in ("turn_started", "turn_completed")]
        return told[0]["turn_id"] if told else None

    @property
    def end(self) -> dict[str, Any] | None:
        """What was said about how the turn ended, if that came."""
        last = self.events[-1] if self.events else None
        return last.data if last is not None and last.kind == "turn_completed" else None

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self.leave()
            raise
        except (OSError, HTTPException) as error:
            self.leave()
            raise Broken(repr(error)) from error


def _connected(connection: HTTPConnection, receive_buffer: int | None) -> socket.socket:
    made = socket.socket()
    if receive_buffer is not None:  # only before it is connected does it bound what the other side may send
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(connection.timeout)
    try:
        made.connect((connection.host, connection.port))
    except BaseException:
        made.close()
        raise
    return made


def _event(block: bytes) -> Event | None:
    """None for a block that only says that somebody is still there."""
    fields = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
    if "data" not in fields:
        return None
    return Event(int(fields["id"]), fields["event"], json.loads(fields["data"]), time.monotonic())
