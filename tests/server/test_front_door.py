"""What comes in at the front door of the real server: half of it, too much of it, or nothing one can read."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentapp.storage import migrate
from agentapp.web.headers import CONTENT_POLICY
from tests.server.test_incoming_request import MALFORMED, UNREADABLE
from tests.support.attacks import (
    attacked,
    connected,
    half_bodies,
    half_headers,
    no_hang_up,
    no_hang_up_at_once,
    unread_answers,
    wait_until_gone,
)
from tests.support.http_client import Stream, Visitor
from tests.support.rounds import ROUNDS
from tests.support.server import Server
from tests.support.server_users import add_people, at_once, seats, served, wait_for
from tests.support.users import PASSWORD

PEOPLE = ["anna", "berta", "carl", "dora"]
COUNT = 200 * ROUNDS


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("door")
    url = f"sqlite:///{directory / 'door.sqlite3'}"
    migrate.upgrade(url)
    add_people(url, PEOPLE)
    with served(directory, url, workers=2, threads=64, half_sent_address=64) as running:
        yield running


def connect(running: Server) -> socket.socket:
    where = urlsplit(running.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=30)


def ask(running: Server, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """The whole answer to these bytes, after which the server hangs up."""
    with connect(running) as sock:
        sock.sendall(raw)
        return parse(read_all(sock))


def read_all(sock: socket.socket) -> bytes:
    came = b""
    while data := sock.recv(65536):
        came += data
    return came


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def is_refused(running: Server) -> bool:
    try:
        connect(running).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("raw", "status"),
    [*UNREADABLE.values(), *((raw, 400) for raw in MALFORMED.values())],
    ids=[*UNREADABLE, *(f"chunks: {name}" for name in MALFORMED)],
)
def test_what_cannot_be_read_is_answered_like_any_other_error(
    running: Server, raw: bytes, status: int
) -> None:
    answered, headers, body = ask(running, raw)
    assert answered == status
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Content-Security-Policy"] == CONTENT_POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "gunicorn"
    assert json.loads(body)["code"] == "bad-request"
    assert "Traceback" not in running.output()


def test_a_person_is_shown_a_page_for_it(running: Server) -> None:
    status, headers, body = ask(running, b"GET / HTTP/9.9.9\r\nAccept: text/html\r\n\r\n")
    assert (status, headers["Content-Type"]) == (400, "text/html; charset=utf-8")
    assert b"could not be understood" in body


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_nobody_who_has_not_signed_in_can_send_more_than_16_kib(running: Server, framing: str) -> None:
    def post(body: bytes) -> int:
        head = b"POST /login HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        head += b"Content-Type: application/x-www-form-urlencoded\r\n"
        if framing == "length":
            return ask(running, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))[0]
        chunks = b"%X\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return ask(running, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)[0]

    assert post(b"username=" + b"x" * 16_300) == 403  # it was read, and has no token
    assert post(b"username=" + b"x" * 16_400) == 413
    visitor = Visitor(running.url)
    visitor.sign_in("anna", PASSWORD)
    assert visitor.send(visitor.new_chat(), "x" * 20_000).status == 200


def test_a_connection_serves_one_request_after_the_other_even_if_they_come_together(running: Server) -> None:
    with connect(running) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 3 + b"GET /livez HTTP/1.0\r\n\r\n")
        assert read_all(sock).count(b" 200 OK\r\n") == 4


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(running: Server) -> None:
    with connect(running) as sock:
        sock.sendall(b"POST /login HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"a=b")
        assert sock.recv(100).startswith(b"HTTP/1.1 403 ")


def test_a_request_that_broke_off_is_answered_if_anybody_still_listens(running: Server) -> None:
    with connect(running) as sock:
        sock.sendall(b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\na=b")
        sock.shutdown(socket.SHUT_WR)
        assert parse(read_all(sock))[0] == 400


def test_all_attacks_at_once_leave_a_person_and_the_health_check_alone(running: Server) -> None:
    """The times are measured in bench/attacks: here everything else runs on the same machine."""
    attacks = (
        half_headers(COUNT),
        half_bodies(COUNT),
        unread_answers(COUNT),
        unread_answers(20, each=60),
        no_hang_up(20, 5),
        no_hang_up_at_once(COUNT),
    )

    def together(where: tuple[str, int]) -> list[socket.socket]:
        with ThreadPoolExecutor(len(attacks)) as pool:
            opened = [pool.submit(attack, where) for attack in attacks]
            return [sock for each in opened for sock in each.result()]

    found = attacked(running, "berta", together, gone_within=60)
    assert found.wrong == []


def test_of_one_address_only_so_many_half_sent_requests_are_kept_but_any_number_of_whole_ones(
    running: Server,
) -> None:
    where = urlsplit(running.url)
    strangers = half_headers(100)((where.hostname or "", where.port or 0))
    time.sleep(4)  # 2 seconds after which a request counts as half-sent, and the time to look
    assert 1 <= wait_until_gone(strangers, 0) <= 64
    office = at_once([partial(Visitor(running.url).get, "/login")] * 100)
    assert {answer.status for answer in office} == {200}
    for sock in strangers:
        sock.close()


def test_a_stranger_who_sends_many_requests_at_once_makes_room_for_others_after_each(running: Server) -> None:
    """Otherwise such a connection could never be closed for another one."""
    strangers = [connect(running) for _ in range(60)]
    for stranger in strangers:
        stranger.sendall(b"GET /login HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
    answers = [read_all(stranger) for stranger in strangers]
    assert all(b" 200 OK\r\n" in answer for answer in answers)
    assert sum(answer.count(b" 200 OK\r\n") for answer in answers) < 10 * len(strangers)
    for stranger in strangers:
        stranger.close()


def test_a_stream_takes_no_pages_thread_however_its_address_is_written(running: Server) -> None:
    """A user's pages have four threads of a worker: eight streams in them would leave none."""
    (seat,) = seats(running.url, ["carl"])
    message = Stream(seat.visitor, f"/chat/{seat.chat}/messages", {"message": "/long 1000"}).upto(1)
    path = f"/chat/{seat.chat}/turns/{message.turn_id}/event%73"
    followers = [Stream(seat.visitor, path).upto(1) for _ in range(12)]
    assert {follower.status for follower in followers} == {200}
    assert replace(seat.visitor, timeout=10).get("/chat").status == 200
    for stream in (message, *followers):
        stream.leave()
    seat.visitor.post(f"/chat/{seat.chat}/turns/{message.turn_id}/stop")


def test_an_answer_that_is_not_taken_is_one_of_the_users_pages_and_nobody_elses(running: Server) -> None:
    dora, anna = seats(running.url, ["dora", "anna"])
    assert dora.visitor.send(dora.chat, "\N{CHESTNUT}" * 30_000).status == 200
    cookies = "; ".join(f"{name}={value}" for name, value in dora.visitor.cookies.items())
    ask = f"GET /chat/{dora.chat}/export.json HTTP/1.1\r\nHost: a\r\nCookie: {cookies}\r\n\r\n"
    where = urlsplit(running.url)
    unread = [connected((where.hostname or "", where.port or 0), ask.encode(), 2048) for _ in range(16)]
    wait_for(lambda: dora.visitor.get("/chat", "application/json").status == 503)
    for _ in range(20):
        assert anna.visitor.get("/chat").status == 200
    for sock in unread:
        sock.close()
    wait_for(lambda: dora.visitor.get("/chat").status == 200)


def test_a_worker_whose_threads_are_taken_leaves_what_comes_to_the_other(
    tmp_path: Path, sqlite_template: Path
) -> None:
    """Four streams, two workers, two threads each: all four are served only if each worker takes two."""
    url = f"sqlite:///{tmp_path / 'spread.sqlite3'}"
    migrate.upgrade(url)
    add_people(url, PEOPLE)
    with served(tmp_path, url, workers=2, threads=2, threads_reserved=0, demo_delay=0.2) as running:
        people = seats(running.url, PEOPLE)
        answers = at_once([partial(seat.send, "/long 20") for seat in people])
        assert [answer.status for answer in answers] == [200] * 4


def test_a_stopping_server_takes_no_more_connections_while_it_ends_its_streams(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'stop.sqlite3'}"
    migrate.upgrade(url)
    add_people(url, PEOPLE)
    with served(tmp_path, url, workers=2, threads=16, demo_delay=0.1) as running:
        seat = seats(running.url, ["anna"])[0]
        path = f"/chat/{seat.chat}/messages"
        stream = Stream(seat.visitor, path, {"message": "/long 20"}).upto(2)
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_refused(running), 2)
        assert not stream.end
        assert stream.rest().end["status"] == "completed"
        assert running.process.wait(60) == 0
