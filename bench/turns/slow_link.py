"""A line to PostgreSQL that takes a while, in a process of its own, and counts what goes over it.

    python -m bench.turns.slow_link --port N --to SOCKET --milliseconds 5

What the server sends arrives that much later, in order; what is sent to it arrives at once. For whoever waits
for an answer that is the same as half of it each way, and timers, which count whole milliseconds, are more
exact so. For each line on its input it prints the counts so far.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from bench.turns.processes import allow_open_files

EXECUTES = frozenset(b"QE")  # a simple query, and the Execute of a prepared or parsed one


@dataclass
class Counts:
    """A round trip: something was sent after something had come back, so somebody waited for it."""

    connections: int = 0
    statements: int = 0
    round_trips: int = 0


class Messages:
    """Counts the statements in what a client of PostgreSQL sends, which comes in arbitrary pieces."""

    def __init__(self, counts: Counts) -> None:
        self._counts, self._unread, self._header = counts, b"", 4  # the first message has no type

    def feed(self, data: bytes) -> None:
        unread, at = self._unread + data, 0
        while len(unread) - at >= self._header:
            kind = unread[at] if self._header == 5 else 0
            length = int.from_bytes(unread[at + self._header - 4 : at + self._header])
            if len(unread) - at < length + self._header - 4:
                break
            self._counts.statements += kind in EXECUTES
            at += length + self._header - 4
            self._header = 5
        self._unread = unread[at:]


class Side(asyncio.Protocol):
    """One end of a connection. What it receives goes to the other end, later."""

    def __init__(self, delay: float) -> None:
        self.other: Side | None = None
        self.transport: Any = None
        self._delay, self._loop = delay, asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._later(lambda other: other.transport.write(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._later(lambda other: other.transport.close())

    def _later(self, act: Any) -> None:
        other = self.other
        if other is None or other.transport is None:
            return
        if self._delay:
            self._loop.call_later(self._delay, act, other)
        else:
            act(other)


class ServerSide(Side):
    def data_received(self, data: bytes) -> None:
        assert isinstance(self.other, ClientSide)
        self.other.waits = False
        super().data_received(data)


class ClientSide(Side):
    def __init__(self, delay: float, to: str, counts: Counts) -> None:
        super().__init__(0)
        self._answers_delay, self._to = delay, to
        self._counts, self._messages = counts, Messages(counts)
        self.waits = False
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._counts.connections += 1
        transport.pause_reading()
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        _, self.other = await self._loop.create_unix_connection(
            lambda: ServerSide(self._answers_delay), self._to
        )
        self.other.other = self
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._messages.feed(data)
        self._counts.round_trips += not self.waits
        self.waits = True
        super().data_received(data)


async def serve(port: int, to: str, milliseconds: float) -> None:
    loop, counts = asyncio.get_running_loop(), Counts()

    def report() -> None:
        if not sys.stdin.readline():
            raise SystemExit
        print(json.dumps(asdict(counts)), flush=True)

    loop.add_reader(sys.stdin, report)
    delay = milliseconds / 1000
    server = await loop.create_server(lambda: ClientSide(delay, to, counts), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--milliseconds", type=float, default=0)
    options = parser.parse_args()
    allow_open_files()
    gc.freeze()
    asyncio.run(serve(options.port, options.to, options.milliseconds))
