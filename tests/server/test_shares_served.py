"""The shares of streams and pages on the real server with two workers: nobody takes what is others'."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import Answer, Stream, Visitor
from tests.support.messages_api import MessagesApi, Script
from tests.support.server import Server
from tests.support.server_users import (
    TIMEOUT_SECONDS,
    Seat,
    add_people,
    at_once,
    obey_the_last,
    seats,
    served,
    wait_for,
)

STREAMS, PAGES = 8, 2
WAIT = "wait until all is over"
FLOOD = 150  # streams of each of two users

pytestmark = pytest.mark.timeout(120)


@dataclass
class House:
    """A server, and a model that answers those who ask it to wait when it is told to."""

    running: Server
    database: str
    let_go: threading.Event = field(default_factory=threading.Event)

    def person(self, name: str, tenant: str = "crowd") -> Seat:
        add_people(self.database, [name], tenant)
        return seats(self.running.url, [name])[0]

    @contextmanager
    def waiting(self, *who: Seat) -> Iterator[list[Stream]]:
        """Each of them has sent a message of which the answer comes at the end."""
        self.let_go.clear()
        sent = [
            Stream(seat.visitor, f"/chat/{seat.chat}/messages", {"message": WAIT}).upto(1) for seat in who
        ]
        try:
            yield sent
        finally:
            self.let_go.set()
            for stream in sent:
                assert stream.rest().end is not None, "the stream of a message has given way"

    def worker_of(self, stream: Stream) -> int | None:
        return self.running.worker_of(stream.port)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("shares")
    shutil.copy(sqlite_template, directory / "test.sqlite3")
    url = f"sqlite:///{directory}/test.sqlite3"
    with MessagesApi() as api:
        limits = {"streams_user": STREAMS, "pages_user": PAGES, "threads_reserved": 8}
        with served(directory, url, api, workers=2, threads=64, **limits) as running:
            made = House(running, url)
            api.respond_with(partial(answer_in_the_end, made.let_go))
            yield made
            assert "Traceback" not in running.output(), running.output()


def answer_in_the_end(let_go: threading.Event, request: Any) -> Script:
    if WAIT in json.dumps(request["messages"][-1]):
        assert let_go.wait(TIMEOUT_SECONDS)
    return obey_the_last(request)


def follow(seat: Seat, sent: Stream) -> Stream:
    """What the same user sees of a turn in another tab."""
    return Stream(seat.visitor, f"/chat/{seat.chat}/turns/{sent.turn_id}/events")


def test_the_oldest_of_a_users_own_streams_gives_way_in_whichever_worker_it_is(house: House) -> None:
    ann, bob = house.person("ann-1"), house.person("bob-1")
    with house.waiting(ann, bob) as (hers, his):
        others = [follow(bob, his) for _ in range(STREAMS - 1)]
        open_ones = [follow(ann, hers) for _ in range(STREAMS - 1)]
        moves = Counter[bool]()
        for _ in range(12):
            oldest = open_ones.pop(0)
            where = house.worker_of(oldest)
            open_ones.append(follow(ann, hers))
            assert open_ones[-1].status == 200
            moves[where == house.worker_of(open_ones[-1])] += 1
            assert oldest.rest().end is None
            assert oldest.retry == 15_000
        assert moves.keys() == {True, False}, "one of the two ways was not tried"
    for stream in (*open_ones, *others):
        assert stream.rest().end is not None, "it was not its turn to give way"


def test_the_seats_of_a_killed_worker_are_free_again(house: House) -> None:
    ann = house.person("ann-2")
    with house.waiting(ann) as (hers,):
        streams = [follow(ann, hers) for _ in range(STREAMS - 1)]
        where = [house.worker_of(stream) for stream in streams]
        victim = next(pid for pid in house.running.children() if pid != house.worker_of(hers))
        while victim not in where:
            streams.append(follow(ann, hers))
            where.append(house.worker_of(streams[-1]))
        latest = list(zip(streams, where, strict=True))[-(STREAMS - 1) :]
        staying = [stream for stream, pid in latest if pid != victim]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: victim not in house.running.children() and len(house.running.children()) == 2)
        for stream in streams:
            if stream not in staying:
                stream.leave()
        while len(staying) < STREAMS - 1:
            staying.append(follow(ann, hers))
    for stream in staying:
        assert stream.rest().end is not None, "the seats of a killed worker were still counted"


def test_two_users_with_many_streams_leave_others_what_is_theirs(house: House) -> None:
    greedy = [house.person("ann-3"), house.person("bob-3")]
    third, elsewhere = house.person("cid-3"), house.person("dan-3", "elsewhere")
    answers: list[Answer] = []

    def talk() -> None:
        answers.extend(third.send(f"message {n}") for n in range(6))

    with house.waiting(*greedy) as sent:
        flood = [partial(follow, seat, stream) for seat, stream in zip(greedy, sent, strict=True)] * FLOOD
        *opened, _ = at_once([*flood, talk])
        assert [answer.status for answer in answers] == [200] * 6, [answer.text for answer in answers]
        assert elsewhere.send("hello").status == 200
        with house.waiting(elsewhere) as (theirs,):
            followed = follow(elsewhere, theirs)
            assert followed.status == 200
        assert followed.rest().end is not None
        streams = [stream for stream in opened if stream is not None]
        assert {stream.status for stream in streams} <= {200, 503}
        scopes = {stream.json["scope"] for stream in streams if stream.status == 503}
        assert scopes <= {"streams", "tenant", "server", "pages"}, scopes
    ended = [stream for stream in streams if stream.rest().end is not None]
    # Twice as many as may stay: those that were told to give way may not have done so when the answer came.
    assert len(ended) <= 2 * 2 * STREAMS
    assert any(stream.retry == 15_000 for stream in streams)


def test_one_users_pages_over_the_limit_are_refused_and_others_are_not(house: House) -> None:
    ann, bob = house.person("ann-4"), house.person("bob-4")

    def look(seat: Seat) -> Answer:
        mine = Visitor(seat.visitor.url, TIMEOUT_SECONDS, dict(seat.visitor.cookies), seat.visitor.csrf)
        return mine.get(f"/chat/{seat.chat}", "application/json")

    *hers, his = at_once([*[partial(look, ann)] * 40, partial(look, bob)])
    refused = [answer for answer in hers if answer.status != 200]
    assert refused
    for answer in refused:
        told = json.loads(answer.body)
        assert (answer.status, told["code"], told["scope"], told["limit"]) == (503, "busy", "pages", PAGES)
    assert his.status == 200
    wait_for(lambda: look(ann).status == 200, 5)
