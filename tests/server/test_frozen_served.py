"""The real server while its PostgreSQL hangs: everybody is answered soon, and all is well when it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.http_client import Visitor
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.rounds import ROUNDS
from tests.support.server_users import Seat, add_people, seats, served

FROZEN_SECONDS = 6.0 if ROUNDS == 1 else 50.0
LONGEST, ALIVE_WITHIN, HEALTHY_WITHIN = 10.0, 1.0, 5.0
WORD_SECONDS = 0.25  # of the demo model
NAMES = [f"p{number}" for number in range(10)]


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with postgres_server() as made:
        yield made


class Asked:
    """What was asked while the database hung: how it was answered, and after how many seconds."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, float]] = []

    def note(self, visitor: Visitor, path: str, accept: str = "application/json") -> int:
        began = time.monotonic()
        status = visitor.get(path, accept).status
        self.found.append((path.partition("/chat/")[0] or path, status, time.monotonic() - began))
        return status

    def send(self, seat: Seat) -> None:
        began = time.monotonic()
        status = seat.send("hello").status
        self.found.append(("post", status, time.monotonic() - began))


def test_while_postgresql_hangs_nobody_waits_long_and_running_turns_go_on(
    database: PostgresServer, tmp_path: Path
) -> None:
    add_people(database.url, NAMES)
    with served(tmp_path, database.url, demo_delay=WORD_SECONDS) as running:
        playing, *others = seats(running.url, NAMES)
        words = " ".join(["word"] * int((FROZEN_SECONDS + 4) / WORD_SECONDS))
        asked, health, over = Asked(), Asked(), threading.Event()

        def use(seat: Seat) -> None:
            while not over.is_set():
                asked.note(seat.visitor, "/chat")
                asked.send(seat)
                asked.note(seat.visitor, f"/chat/{seat.chat}/turns/none/events", "text/event-stream")

        def look(path: str) -> None:
            visitor = Visitor(running.url, 30.0)
            while not over.is_set():
                health.note(visitor, path)
                time.sleep(0.2)

        with ThreadPoolExecutor(16) as pool:
            playing_turn = pool.submit(playing.send, words)
            time.sleep(1.0)  # it has begun by then; if not, it is refused and the test fails
            database.freeze()
            try:
                jobs = [pool.submit(use, seat) for seat in others]
                jobs += [pool.submit(look, path) for path in ("/livez", "/readyz")]
                time.sleep(FROZEN_SECONDS)
            finally:
                database.thaw()
                thawed = time.monotonic()
            while asked.note(Visitor(running.url, 30.0), "/readyz") != 200:
                assert time.monotonic() < thawed + HEALTHY_WITHIN, running.output()
                time.sleep(0.05)
            over.set()
            for job in jobs:
                job.result(60)
            answer = playing_turn.result(60)
        assert time.monotonic() < thawed + 60
        late = [each for each in asked.found if each[2] >= LONGEST]
        assert not late, late
        assert max(seconds for path, _, seconds in health.found if path == "/livez") < ALIVE_WITHIN
        assert {status for path, status, _ in health.found if path == "/livez"} == {200}
        assert 503 in {status for path, status, _ in health.found if path == "/readyz"}
        assert {status for _, status, _ in asked.found} <= {200, 404, 409, 503}
        assert sum(status == 503 for _, status, _ in asked.found) > len(others)
        assert answer.status == 200, answer.text
        assert playing.statuses() == ["completed"]
        for seat in others:
            assert asked.note(seat.visitor, "/chat") == 200
