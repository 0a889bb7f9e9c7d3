"""An answer that is written while the application is still making it: no thread waits for its client."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from gunicorn.config import Config

from agentapp.server.answer import Answer
from agentapp.server.connection import ClientGone, Connection
from agentapp.server.limits import MAX_BEHIND_BYTES

NOW = 1000.0


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        yield Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2)), theirs


def stream_to(connection: Connection) -> Answer:
    """The answer to a request for a stream, which goes to this connection."""
    request = SimpleNamespace(version=(1, 1), method="POST", should_close=lambda: False)
    answer = Answer(request, connection.sock, connection._cfg, connection)
    answer.start_response("200 OK", [("Content-Type", "text/event-stream")])
    return answer


def all_that_comes(client: socket.socket) -> bytes:
    came = b""
    while data := client.recv(65536):
        came += data
    return came


def test_a_piece_that_is_sent_now_goes_out_at_once_with_the_head_before_it(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, client = pair
    stream_to(connection).send_now(b"one")
    head, _, body = client.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"3\r\none\r\n"


def test_no_thread_waits_for_a_client_that_does_not_take_its_stream_and_at_last_it_is_given_up(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so by the end of the connection, behind what it has still to read."""
    monkeypatch.setattr(Connection, "_wait_until_writable", lambda _: pytest.fail("a thread waits"))
    connection, client = pair
    answer, sent = stream_to(connection), 0

    def send_on() -> None:
        nonlocal sent
        while sent < 100_000_000:
            answer.send_now(b"x" * 1000)
            sent += 1000
            assert connection.unsent_bytes <= MAX_BEHIND_BYTES + 2000

    with pytest.raises(ClientGone):
        send_on()
    assert sent > MAX_BEHIND_BYTES
    assert answer.should_close()
    assert len(all_that_comes(client)) < sent
    answer.close()  # as the server does at the end, in any case
    assert not connection.has_unsent


def test_a_client_that_was_slow_gets_everything_in_order_once_it_reads(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, client = pair
    answer, number = stream_to(connection), 0
    while connection.unsent_bytes < MAX_BEHIND_BYTES // 2 and number < 10_000:
        answer.send_now(b"%07d " % number * 100)
        number += 1
    came = client.recv(1 << 22)
    for _ in range(3):
        answer.send_now(b"%07d " % number * 100)
        number += 1
    answer.close()
    while not came.endswith(b"0\r\n\r\n"):
        assert connection.send_rest(NOW)
        came += client.recv(65536)
    numbers = [int(each) for each in re.findall(rb"\b\d{7}\b", came)]
    assert numbers == sorted([*range(number)] * 100)


def test_a_stream_that_is_ended_now_is_whole_and_its_connection_is_not_kept(
    pair: tuple[Connection, socket.socket],
) -> None:
    """A client that used it again would wait for the thread, which is not done yet."""
    connection, client = pair
    answer = stream_to(connection)
    answer.send_now(b"one")
    answer.end_now()
    assert all_that_comes(client).endswith(b"3\r\none\r\n0\r\n\r\n")
    assert answer.should_close()
    answer.close()
