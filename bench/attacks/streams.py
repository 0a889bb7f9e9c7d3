"""Two users open 1,800 streams at once, and a third sends six messages: all of them must be answered.

    python -m bench.attacks.streams [--streams 1800]

A fresh server with default settings, started as the README says, on this machine alone. The two users follow
an answer of their own that takes longer than the attack. Of their streams, 32 of each user may
stay open, that of the message included.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.http_client import Answer, Stream
from tests.support.retrying_users import Found
from tests.support.server import SCRIPTS, Server, server
from tests.support.server_users import Seat, add_people, seats

SERVE = (SCRIPTS / "agentapp", "serve")
WORKERS, THREADS = 2, 512  # the defaults
LONG_ANSWER = "/long 4000"  # words of 20 ms each: 80 s
MESSAGES = 6
LAST_CHUNK = b"0\r\n\r\n"  # after it the connection stays open, for another request
STREAMS_USER = 32
MOST_SECONDS = 45.0  # that the attack lasts


@dataclass
class Attack:
    """What the two users did and what became of it."""

    address: tuple[str, int]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Counter[str] = field(default_factory=Counter)
    told_later: int = 0
    waiting: int = 0  # for their turn, at the end
    still_open: Counter[str] = field(default_factory=Counter)  # of each user, by the chat

    async def follow(self, seat: Seat, path: str) -> None:
        try:
            await self._follow(seat, path)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.answers[type(error).__name__] += 1

    async def _follow(self, seat: Seat, path: str) -> None:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            cookies = "; ".join(f"{key}={value}" for key, value in seat.visitor.cookies.items())
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nCookie: {cookies}\r\n\r\n"
            writer.write(head.encode())
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            self.answers[status] += 1
            if status == "200":
                await self._read(reader, seat.chat)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, name: str) -> None:
        self.still_open[name] += 1
        over = asyncio.create_task(self.over.wait())
        try:
            while not self.over.is_set():
                more = asyncio.create_task(reader.read(65536))
                await asyncio.wait((more, over), return_when=asyncio.FIRST_COMPLETED)
                if not more.done():
                    more.cancel()
                    return
                piece = more.result()
                self.told_later += b"retry: 15000" in piece
                if not piece or piece.endswith(LAST_CHUNK):
                    return
        finally:
            over.cancel()
            if not self.over.is_set():
                self.still_open[name] -= 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_800)
    options = parser.parse_args()
    with fresh_server() as (running, database):
        found = attacked(running, database, options.streams)
    for name, figure in found.figures.items():
        print(f"  {name}: {figure}")
    for wrong in found.wrong:
        print(f"  WRONG: {wrong}")
    print(f"  {len(found.wrong)} violations")
    sys.exit(bool(found.wrong))


@contextmanager
def fresh_server() -> Iterator[tuple[Server, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="agentapp-attack-") as home,
        server(Path(home), command=SERVE, workers=WORKERS, threads=THREADS) as running,
    ):
        yield running, f"sqlite:///{home}/instance/agentapp.sqlite3"


def attacked(running: Server, database: str, streams: int) -> Found:
    names = ("greedy-1", "greedy-2", "third")
    add_people(database, names)
    first, second, third = seats(running.url, names)
    long_answers = [begin_long_answer(seat) for seat in (first, second)]
    before = send_all(third, "before")
    attack, during = asyncio.run(
        run_attack(running, [(first, long_answers[0]), (second, long_answers[1])], third, streams)
    )
    for long_answer in long_answers:
        long_answer.leave()
    found = Found()
    found.figures["the third user's messages before"] = described(before)
    found.figures["the third user's messages meanwhile"] = described(during)
    found.figures["what the two users were answered"] = dict(attack.answers)
    found.figures["streams that were told to come back later"] = attack.told_later
    found.figures["streams that stayed open, of each of the two"] = sorted(attack.still_open.values())
    for answer, _ in (*before, *during):
        found.claim(answer.status == 200, f"the third user was answered {answer.status}: {answer.text}")
    found.figures["streams that still wait for their turn"] = attack.waiting
    # While some give way and others take their place, there may be twice as many for a moment.
    most = 2 * STREAMS_USER if attack.waiting else STREAMS_USER
    found.claim(max(attack.still_open.values()) <= most, f"too many stay open: {attack.still_open}")
    found.claim(attack.answers["200"] >= STREAMS_USER, f"there was no attack: {attack.answers}")
    log = running.output()
    for bad in ("Traceback", "QueuePool", "isolation violation"):
        found.claim(bad not in log, f"{bad} in the log: {log[-2000:]}")
    return found


def begin_long_answer(seat: Seat) -> Stream:
    answer = Stream(seat.visitor, f"/chat/{seat.chat}/messages", {"message": LONG_ANSWER}).upto(1)
    assert answer.status == 200, answer.body
    return answer


async def run_attack(
    running: Server, greedy: Sequence[tuple[Seat, Stream]], third: Seat, streams: int
) -> tuple[Attack, list[tuple[Answer, float]]]:
    where = urlsplit(running.url)
    attack = Attack((where.hostname or "", where.port or 0))
    tasks = [
        asyncio.create_task(attack.follow(seat, f"/chat/{seat.chat}/turns/{answer.turn_id}/events"))
        for _ in range(streams // len(greedy))
        for seat, answer in greedy
    ]
    ends = time.monotonic() + MOST_SECONDS
    try:
        sent = await asyncio.to_thread(send_all, third, "meanwhile")
        # The others wait in the server, without a thread, until one of the same user's has given way.
        while time.monotonic() < ends and (
            attack.answers.total() < len(tasks) or max(attack.still_open.values()) >= STREAMS_USER
        ):
            await asyncio.sleep(0.1)
        attack.waiting = len(tasks) - attack.answers.total()
    finally:
        attack.over.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    return attack, sent


def send_all(seat: Seat, when: str) -> list[tuple[Answer, float]]:
    sent = []
    for n in range(MESSAGES):
        began = time.monotonic()
        sent.append((seat.send(f"{when} {n}"), time.monotonic() - began))
    return sent


def described(sent: Sequence[tuple[Answer, float]]) -> str:
    statuses = dict(Counter(answer.status for answer, _ in sent))
    return f"{statuses}, the slowest took {max(took for _, took in sent):.1f} s"


if __name__ == "__main__":
    main()
