from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from gunicorn.config import Config

from agentapp.server.connection import Connection
from agentapp.server.connections import Connections, Waits
from agentapp.server.waiting import WaitingLoop

Pair = tuple[socket.socket, socket.socket]  # the client and the server


class Loop(WaitingLoop):
    """Without a server around it. What it receives it only notes."""

    def __init__(self) -> None:
        self.poller = selectors.DefaultSelector()
        self.log = Mock()
        self._connections = Connections()
        self.received: list[Connection] = []

    def _receive(self, connection: Connection) -> None:
        self.received.append(connection)

    def _keep(self, connection: Connection) -> None:
        self._wait(connection, Waits.IDLE)

    def look(self) -> int:
        """How much has happened."""
        events = self.poller.select(0)
        for key, _ in events:
            key.data(key.fileobj)
        return len(events)

    def give_to_thread(self, connection: Connection) -> None:
        self._connections.remove(connection)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.poller.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    client, server = socket.socketpair()
    with client, server:
        yield client, server


@pytest.fixture
def connection(loop: Loop, pair: Pair) -> Connection:
    made = Connection(Config(), pair[1], ("127.0.0.1", 1), ("127.0.0.1", 2))
    loop._wait(made, Waits.IDLE)
    return made


@pytest.mark.parametrize("leaves", [False, True])
def test_who_sends_more_or_leaves_while_a_thread_answers_wakes_the_loop_only_once(
    loop: Loop, connection: Connection, pair: Pair, leaves: bool
) -> None:
    loop.give_to_thread(connection)
    pair[0].close() if leaves else pair[0].send(b"GET")
    assert [loop.look() for _ in range(3)] == [1, 0, 0]
    assert loop.received == []


def test_what_came_while_a_thread_answered_is_received_afterwards(
    loop: Loop, connection: Connection, pair: Pair
) -> None:
    loop.give_to_thread(connection)
    pair[0].send(b"GET")
    loop.look()
    connection.keep = True
    loop._send_rest(connection)
    loop.look()
    assert loop.received == [connection]


def test_requests_one_after_the_other_need_no_call_to_watch_them(
    loop: Loop, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("register", "unregister", "modify"):
        monkeypatch.setattr(loop.poller, name, Mock(side_effect=AssertionError(name)))
    connection.keep = True
    for _ in range(3):
        loop.give_to_thread(connection)
        loop._send_rest(connection)
    assert connection.waits is Waits.IDLE


def test_a_client_that_is_slow_to_take_its_answer_is_watched_for_that(
    loop: Loop, connection: Connection, pair: Pair
) -> None:
    loop.give_to_thread(connection)
    connection.send(b"x" * 10_000_000, may_wait=True)
    loop._send_rest(connection)
    assert connection.waits is Waits.SENDING
    pair[0].send(b"GET")
    assert loop.look() == 0
    pair[0].recv(5_000_000)
    assert loop.look() == 1


@pytest.mark.parametrize("end", ["_close", "_abort"])
def test_a_connection_that_ended_in_a_thread_is_watched_no_more(
    loop: Loop, connection: Connection, end: str
) -> None:
    loop.give_to_thread(connection)
    getattr(loop, end)(connection)
    assert not loop.poller.get_map()
