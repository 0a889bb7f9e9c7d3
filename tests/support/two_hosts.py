"""Two servers on one database and one Redis, and people whose turns are read and stopped at the other one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.client_scenarios import on_threads
from tests.support.http_client import Stream
from tests.support.messages_api import MessagesApi
from tests.support.retrying_users import (
    JSON,
    LIMITS_NOBODY_REACHES,
    CountingModel,
    Found,
    Installation,
    examine_log,
    send,
    wait_until_quiet,
    words,
)
from tests.support.server_users import Seat, served

SECRET = "one secret for both of the hosts"
SLOW = "[[slow:0.02]]"
WORDS = 40


@dataclass(frozen=True)
class TwoHosts:
    hosts: tuple[Installation, Installation]

    def seats(self, count: int) -> list[tuple[Seat, Seat]]:
        """So many chats, each seen from one host and from the other."""
        found = []
        for n, seat in enumerate(self.hosts[0].seats(count)):
            there = Seat(replace(seat.visitor, url=self.hosts[1].running.url), seat.chat)
            found.append((seat, there) if n % 2 else (there, seat))
        return found

    def examine(self, found: Found) -> None:
        wait_until_quiet(found, self.hosts[0].database)
        for host in self.hosts:
            examine_log(found, host)


@contextmanager
def two_hosts(directory: Path, database: str, **settings: Any) -> Iterator[TwoHosts]:
    chosen = {"secret_key": SECRET, "threads": 64, **LIMITS_NOBODY_REACHES, **settings}
    model = CountingModel()
    with ExitStack() as stack:
        api = stack.enter_context(MessagesApi(responder=model))
        hosts = []
        for name in ("a", "b"):
            home = directory / name
            home.mkdir()
            running = stack.enter_context(served(home, database, api, **chosen))
            hosts.append(Installation(database, running, api, model, is_demo=False, word_seconds=0.02))
        yield TwoHosts((hosts[0], hosts[1]))


def follows(
    two: TwoHosts, count: int, at_a_time: int = 6, trouble: Callable[[], None] | None = None
) -> Found:
    """Answers are read where they are given and, by two others, at the other host: from the beginning, and
    from somewhere in the middle on. ``trouble`` is made again and again meanwhile.
    """
    found, late, rounds, over = Found(), list[float](), iter(range(count)), threading.Event()
    seats = two.seats(at_a_time)
    other = {here.chat: there for here, there in seats}

    def talk(here: Seat) -> None:
        with ThreadPoolExecutor(2) as pool:
            for _ in rounds:
                said = words(random.randrange(WORDS // 2, WORDS), SLOW)
                first = send(here, said).upto(1)
                there = [pool.submit(read, other[here.chat], str(first.turn_id), after) for after in (0, 5)]
                first.rest()
                arrived = {event.id: event.at for event in first.events}
                for reading in there:
                    second, begun = reading.result()
                    check(first, second, said.reply)
                    late.extend(e.at - arrived[e.id] for e in second.events if arrived[e.id] > begun)

    def read(seat: Seat, turn_id: str, after: int) -> tuple[Stream, float]:
        if after:
            time.sleep(random.random() / 2)
        stream = Stream(seat.visitor, f"/chat/{seat.chat}/turns/{turn_id}/events", after=after)
        return stream.rest(), stream.events[0].at if stream.events else 0.0

    def check(first: Stream, second: Stream, reply: str) -> None:
        after = second.ids[0] - 1 if second.ids else 0
        found.claim((first.text, (first.end or {}).get("reply")) == (reply, reply), f"{first.text!r}")
        found.claim(second.ids == first.ids[after:], f"{first.ids} came as {second.ids}")
        said, heard = ([event.data for event in stream.events] for stream in (first, second))
        found.claim(heard == said[after:], f"{said} came as {heard}")

    def make_trouble() -> None:
        while trouble is not None and not over.wait(0.5):
            trouble()

    with ThreadPoolExecutor(1) as pool:
        troubling = pool.submit(make_trouble)
        try:
            on_threads(talk, [here for here, _ in seats])
        finally:
            over.set()
        troubling.result()
    found.figures["answers"] = f"{count:,}, each read three times"
    found.note_times("an event at the other host, after it came at the first", late)
    two.examine(found)
    return found


def stops(two: TwoHosts, count: int, at_a_time: int = 2) -> Found:
    """Stop, at the other host, while the model says nothing."""
    found, took, rounds = Found(), list[float](), iter(range(count))
    seats = two.seats(at_a_time)
    other = {here.chat: there for here, there in seats}

    def several(here: Seat) -> None:
        with ThreadPoolExecutor(1) as pool:
            for _ in rounds:
                said = words(5, "[[stall:600]]")
                stream, there = send(here, said).upto(1), other[here.chat]
                while not stream.text:
                    next(stream)
                reading, began = pool.submit(stream.rest), time.monotonic()
                path = f"/chat/{there.chat}/turns/{stream.turn_id}/stop"
                answer = Stream(there.visitor, path, {}, accept=JSON)
                answer.leave()
                end = reading.result().end or {}
                took.append(stream.events[-1].at - began)
                found.claim(answer.status == 200, f"Stop was answered {answer.status} {answer.body!r}")
                found.claim(end.get("status") == "stopped", f"it ended as {end}")

    on_threads(several, [here for here, _ in seats])
    found.note_times("from Stop at the other host to the end of the stream", took)
    two.examine(found)
    return found
