"""Connections that wait for their client: who is late, who is too many, who makes room."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from gunicorn.config import Config

from agentapp.server import connection as module
from agentapp.server import connections as connections_module
from agentapp.server.connection import ClientGone, Connection
from agentapp.server.connections import Connections, Waits
from agentapp.server.limits import (
    BODY_BYTES_A_SECOND,
    BODY_GRACE_SECONDS,
    BODY_SECONDS,
    HALF_SENT_AFTER_SECONDS,
    HALF_SENT_WORKER,
    HEAD_SECONDS,
    MAX_HALF_SENT_BYTES,
)

NOW = 1000.0
LONG_ANSWER_BYTES = 5_000_000
POST = b"POST /login HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2)), theirs


def half_sent(address: str, at: float = NOW, data: bytes = b"G") -> Connection:
    ours, theirs = socket.socketpair()
    theirs.close()
    connection = Connection(Config(), ours, (address, 1), ("127.0.0.1", 2))
    ours.close()
    connection.feed(data, at)
    return connection


def test_headers_must_come_in_time_and_their_time_does_not_begin_anew_with_every_byte() -> None:
    connection = half_sent("a")
    connection.feed(b"E", NOW + HEAD_SECONDS - 1)
    assert not connection.is_late(NOW + HEAD_SECONDS - 0.1)
    assert connection.is_late(NOW + HEAD_SECONDS)


def test_a_body_must_come_in_time_and_not_too_slowly() -> None:
    connection = half_sent("a", NOW, POST)
    connection.feed(b"x" * int(BODY_GRACE_SECONDS * BODY_BYTES_A_SECOND), NOW + 1)
    assert not connection.is_late(NOW + BODY_GRACE_SECONDS)
    assert connection.is_late(NOW + BODY_GRACE_SECONDS + 1)
    connection.feed(b"x" * int(BODY_SECONDS * BODY_BYTES_A_SECOND), NOW + BODY_GRACE_SECONDS)
    assert not connection.is_late(NOW + BODY_SECONDS - 0.1)
    assert connection.is_late(NOW + BODY_SECONDS)


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("2001:db8:1:2::1", 1, 0, 0), "2001:0db8:0001:0002"),
        (("2001:db8:1:2:3::9", 1, 0, 0), "2001:0db8:0001:0002"),
        (("::ffff:192.0.2.1", 1, 0, 0), "::ffff:192.0.2.1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80:0000:0000:0000"),
        ("", ""),
    ],
)
def test_of_ipv6_a_network_is_one_address(
    pair: tuple[Connection, socket.socket], client: object, address: str
) -> None:
    assert Connection(Config(), pair[1], client, None).address == address


def test_the_oldest_half_sent_requests_of_an_address_go_and_nobody_elses() -> None:
    connections = Connections(half_sent_address=3)
    crowd = [half_sent("bad", NOW + n / 10) for n in range(8)]
    others = [half_sent("good", NOW + n / 10) for n in range(3)]
    for connection in (*others, *crowd):
        connections.add(connection, Waits.RECEIVING)
    assert connections.too_many(NOW + HALF_SENT_AFTER_SECONDS - 0.1) == []
    assert connections.too_many(NOW + 10) == crowd[:5]


def test_whole_requests_and_idle_connections_of_an_address_are_never_too_many() -> None:
    connections = Connections(half_sent_address=3)
    for _ in range(100):
        for waits in (Waits.IDLE, Waits.SENDING, Waits.TO_CLOSE):
            connections.add(half_sent("office"), waits)
    assert connections.too_many(NOW + 10) == []


def test_all_half_sent_requests_together_are_limited_in_number_and_in_bytes() -> None:
    many = Connections()
    crowd = [half_sent(str(n)) for n in range(HALF_SENT_WORKER + 5)]
    for connection in crowd:
        many.add(connection, Waits.RECEIVING)
    assert many.too_many(NOW + 10) == crowd[:5]
    large = Connections()
    for connection in crowd[:10]:
        connection.incoming.size = MAX_HALF_SENT_BYTES // 8
        large.add(connection, Waits.RECEIVING)
    assert large.too_many(NOW + 10) == crowd[:2]


def test_those_with_the_least_to_lose_make_room_first() -> None:
    connections = Connections()
    by_waits = {waits: half_sent("a") for waits in Waits}
    for waits, connection in reversed(by_waits.items()):
        connections.add(connection, waits)
    for waits in (Waits.TO_CLOSE, Waits.IDLE, Waits.RECEIVING, Waits.SENDING):
        assert connections.to_make_room() is by_waits[waits]
        connections.remove(by_waits[waits])
    assert connections.to_make_room() is None


def test_strangers_make_room_before_anybody_who_signed_in_and_then_who_has_most_of_them() -> None:
    connections = Connections()
    strangers = [half_sent("a") for _ in Waits]
    for connection, waits in zip(strangers, Waits, strict=True):
        connections.add(connection, waits)
    mine, greedy = [half_sent("a")], [half_sent("a") for _ in range(3)]
    for user, owned in (("anna", mine), ("greedy", greedy)):
        for connection in owned:
            connection.user = user
            connections.add(connection, Waits.IDLE)
    gone = []
    while (connection_or_none := connections.to_make_room()) is not None:
        connections.remove(connection_or_none)
        gone.append(connection_or_none)
    assert gone[:4] == strangers
    assert gone[4:6] == greedy[:2]
    assert set(gone[6:]) == {mine[0], greedy[2]}


def test_answers_that_nobody_takes_have_a_limit_and_who_has_most_of_them_loses_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = Connections()
    mine, greedy = half_sent("a"), [half_sent("a") for _ in range(5)]
    mine._unsent = memoryview(bytes(300))
    mine.user = "anna"
    connections.add(mine, Waits.SENDING)
    for each in greedy:
        each.user, each._unsent = "greedy", memoryview(bytes(200))
        connections.add(each, Waits.SENDING)
    assert connections.too_much_unsent() == []
    monkeypatch.setattr(connections_module, "MAX_UNSENT_BYTES", 800)
    assert connections.too_much_unsent() == greedy[:3]


def test_an_answer_that_nobody_reads_is_left_to_the_main_loop_however_long_it_is(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, client = pair
    connection.send(b"x" * LONG_ANSWER_BYTES, may_wait=True)
    assert connection.has_unsent
    client.settimeout(10)
    came = 0
    while connection.has_unsent:
        came += len(client.recv(65536))
        assert connection.send_rest(NOW)
    client.settimeout(0)
    while came < LONG_ANSWER_BYTES:
        came += len(client.recv(65536))
    assert came == LONG_ANSWER_BYTES


def test_a_reader_who_takes_nothing_loses_its_connection(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.05)
    connection, _ = pair
    with pytest.raises(ClientGone):
        connection.send(b"x" * 10_000_000)


@pytest.mark.parametrize(
    ("data", "stays"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", True),
        (b"POST /chat HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_when_many_come_those_who_left_without_need_of_an_answer_are_dropped(
    pair: tuple[Connection, socket.socket], data: bytes, stays: bool
) -> None:
    connection, client = pair
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    assert connection.receive(NOW, drop_if_left=True) is stays


def test_a_client_that_hung_up_is_seen(pair: tuple[Connection, socket.socket]) -> None:
    connection, client = pair
    assert not connection.has_left()
    client.send(b"x")
    assert not connection.has_left()
    assert connection.receive(NOW)
    client.close()
    assert connection.has_left()
    with pytest.raises(ClientGone):
        connection.send(b"x")
