"""An HTTP exchange at the least cost: bytes that are ready go out, and what comes back is looked at once."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
CLOSES = re.compile(rb"connection: *close", re.IGNORECASE)
RETRY_AFTER = re.compile(rb"retry-after: *(\d+)", re.IGNORECASE)
CODE = re.compile(rb'"(?:error_)?code": ?"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """``status`` 0: the connection was closed before all of the answer had come, or it took too long."""

    status: int
    head: bytes
    body: bytes
    ended: float
    first: float | None  # when the first byte of the body came
    note: str = ""

    @property
    def retry_after(self) -> float:
        found = RETRY_AFTER.search(self.head)
        return float(found[1]) if found else 0.0

    def fault(self, reply: str) -> str:
        """Why it is not all of the reply and its end, as JSON or as events; empty if it is."""
        if self.note or self.status != 200:
            found = CODE.search(self.body)
            return self.note or (found[1].decode() if found else "no code")
        if not self.body.startswith((b"id:", b"event:", b":")):
            return _fault_of(json.loads(self.body), reply)
        texts, end = [], None
        for block in self.body.split(b"\n\n"):
            kind, _, data = block.partition(b"\ndata: ")
            if kind.endswith(b"event: text"):
                texts.append(json.loads(data)["text"])
            elif kind.endswith(b"event: turn_completed"):
                end = json.loads(data)
        if end is None:
            return "no end"
        return _fault_of(end, reply) or ("" if "".join(texts) == reply else "words are missing")


def _fault_of(end: dict[str, Any], reply: str) -> str:
    if "choices" in end:  # as OpenAI's API has it
        return "" if end["choices"][0]["message"]["content"] == reply else "another reply"
    if end["status"] != "completed":
        return f"turn {end['status']} {end.get('error_code') or ''}".strip()
    return "" if end["reply"] == reply else "another reply"


class Connection(asyncio.Protocol):
    """For one request after the other. ``is_open`` says if it can be used for another one."""

    def __init__(self) -> None:
        self.is_open = False
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport, self.is_open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answered and not self._answered.done():
            self._answered.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if not self._head_bytes:
            self._read_head()
        elif self._first is None:
            self._first = time.monotonic()
        if self._is_complete() and self._answered and not self._answered.done():
            self._answered.set_result(None)

    def _read_head(self) -> None:
        received = b"".join(self._pieces)
        at = received.find(b"\r\n\r\n")
        if at < 0:
            return
        self._head, self._head_bytes = received[:at], at + 4
        length = LENGTH.search(self._head)
        self._length = int(length[1]) if length else None
        if self._size > self._head_bytes:
            self._first = time.monotonic()

    def _is_complete(self) -> bool:
        if not self._head_bytes:
            return False
        if self._length is not None:
            return self._size >= self._head_bytes + self._length
        # Without a length the answer ends with an empty chunk, which may come in two pieces.
        return b"".join(self._pieces[-2:]).endswith(b"\r\n0\r\n\r\n")

    async def ask(self, request: bytes, seconds: float) -> Answer:
        self._pieces: list[bytes] = []
        self._size = self._head_bytes = 0
        self._head, self._length, self._first = b"", None, None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        note = ""
        try:
            await asyncio.wait_for(self._answered, seconds)
        except TimeoutError:
            note = "timeout"
        return self._answer(time.monotonic(), note)

    def _answer(self, ended: float, note: str) -> Answer:
        body = b"".join(self._pieces)[self._head_bytes :]
        if not note and not self._is_complete():
            note = "cut" if self._head_bytes else "no answer"
        status = int(self._head[9:12]) if self._head and not note else 0
        if CHUNKED.search(self._head):
            body = unchunked(body)
        if note or CLOSES.search(self._head):
            self.close()
        return Answer(status, self._head, body, ended, self._first, note)

    def close(self) -> None:
        self.is_open = False
        self._transport.close()


def unchunked(body: bytes) -> bytes:
    pieces, at = [], 0
    while (line := body.find(b"\r\n", at)) > 0:
        length = int(body[at:line], 16)
        pieces.append(body[line + 2 : line + 2 + length])
        at = line + length + 4
    return b"".join(pieces)


async def connected(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection
