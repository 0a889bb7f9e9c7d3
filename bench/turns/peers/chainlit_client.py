"""A tab that is open on a Chainlit app: a WebSocket on which it speaks Socket.IO, as its page does.

In a packet the first digit is Engine.IO's (0 open, 2 ping, 3 pong, 4 message) and the second, of messages,
Socket.IO's (0 connect, 2 event, 4 refused).
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

from bench.turns.exchange import Answer
from bench.turns.peers.websocket import CLOSE, PING, PONG, TEXT, Frames, framed
from bench.turns.plans import Person, Phase

GREETING_SECONDS = 60.0
UPGRADE = (
    "GET /ws/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
OPEN, ASKED_IF_ALIVE, ALIVE, CONNECT, REFUSED = b"0", b"2", b"3", b"40", b"44"
GREET, GREETED = b'42["connection_successful"]', b'42["clear_call_fn"'
SAID, OVER = b'42["new_message"', b'42["task_end"'


class ChainlitConnection(asyncio.Protocol):
    """For one message after the other. ``is_open`` says if it can be used for another one."""

    def __init__(self) -> None:
        self.is_open = False
        self._head: bytes | None = b""  # of the answer to the upgrade, while it is not complete
        self._frames = Frames()
        self._awaited = self._said = b""
        self._first: float | None = None
        self._came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport, self.is_open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end_wait()

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = None if found else head
            if found and not head.startswith(b"HTTP/1.1 101 "):
                self.close()
        for kind, payload in self._frames.feed(data):
            if kind == TEXT:
                self._packet(payload)
            elif kind == PING:
                self._transport.write(framed(payload, PONG))
            elif kind == CLOSE:
                self.close()

    def _packet(self, packet: bytes) -> None:
        if packet.startswith(SAID):
            self._said, self._first = packet, time.monotonic()
        elif packet == ASKED_IF_ALIVE:
            self._transport.write(framed(ALIVE))
        elif packet.startswith(OPEN):
            auth = json.dumps({"sessionId": str(uuid4()), "clientType": "webapp"})
            self._transport.write(framed(CONNECT + auth.encode()))
        elif packet.startswith(CONNECT):
            self._transport.write(framed(GREET))
        elif packet.startswith(REFUSED):
            self.close()
        if packet.startswith(self._awaited):
            self._end_wait()

    def _end_wait(self) -> None:
        if not self._came.done():
            self._came.set_result(None)

    async def _send(self, data: bytes, awaited: bytes, seconds: float) -> None:
        """And wait for a packet that begins so, or until the connection is lost."""
        self._awaited, self._said, self._first = awaited, b"", None
        self._came = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            await asyncio.wait_for(self._came, seconds)
        except TimeoutError:
            self.close()
            raise

    async def greet(self, port: int) -> None:
        await self._send(UPGRADE.format(port=port).encode(), GREETED, GREETING_SECONDS)
        if not self.is_open:
            raise ConnectionError("refused")

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """The turn is over when the page would let its user send again; the answer is as one of ours."""
        try:
            await self._send(request, OVER, seconds)
        except TimeoutError:
            return Answer(0, b"", b"", time.monotonic(), None, "timeout")
        ended = time.monotonic()
        if not self.is_open:
            return Answer(0, b"", b"", ended, self._first, "cut")
        said = json.loads(self._said[2:])[1]["output"] if self._said else ""
        body = json.dumps({"status": "completed", "reply": said}).encode()
        return Answer(200, b"", body, ended, self._first)

    def close(self) -> None:
        self.is_open = False
        self._transport.close()


async def connected(port: int) -> ChainlitConnection:
    """As a new session that is ready for its first message."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(ChainlitConnection, "127.0.0.1", port)
    await connection.greet(port)
    return connection


def message(person: Person, path: str, phase: Phase) -> bytes:
    step = {
        "id": str(uuid4()),
        "threadId": "",
        "name": "User",
        "type": "user_message",
        "output": phase.message,
        "createdAt": "2026-01-01T00:00:00.000Z",
    }
    packet = json.dumps(["client_message", {"message": step, "fileReferences": []}])
    return framed(b"42" + packet.encode())
