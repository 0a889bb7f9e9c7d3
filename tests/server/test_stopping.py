"""A server that ends loses nobody: neither who has just connected, nor what comes on a kept connection."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from agentapp.server.limits import STOPPING_PROXY_KEEPALIVE_SECONDS
from agentapp.server.listening import take_no_new
from tests.support.nginx import SHIPPED
from tests.support.server import Server, server
from tests.support.server_users import wait_for

MARGIN_SECONDS = 1.0  # for a request that is on its way, on a machine that is busy
SHORT = 0.2  # for a connection on this machine, which takes no time


def kept_by_nginx() -> float:
    """For how many seconds it keeps a connection that is idle."""
    found = re.search(r"keepalive_timeout (\d+)s;", (SHIPPED / "agentapp-upstream.conf").read_text())
    assert found
    return float(found[1])


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_who_has_connected_is_there_and_nobody_new_is(family: int, address: str) -> None:
    with ExitStack() as held:
        listener = held.enter_context(socket.socket(family))
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen(16)
        listener.setblocking(False)
        where = listener.getsockname()
        before = held.enter_context(socket.create_connection(where[:2], timeout=30))
        take_no_new([listener])
        with pytest.raises(TimeoutError):
            socket.create_connection(where[:2], timeout=SHORT)
        accepted = held.enter_context(listener.accept()[0])
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.close()
        before.sendall(b"is anybody there?")
        assert accepted.recv(100) == b"is anybody there?"
        accepted.sendall(b"yes")
        assert before.recv(100) == b"yes"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where[:2], timeout=30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, workers=2, env={"AGENTAPP_TRUSTED_PROXIES": "1"}) as running:
        wait_for(lambda: len(running.children()) == 2)
        yield running


def test_before_a_server_stops_listening_nobody_new_is_connected(running: Server) -> None:
    """Its workers stand still, so that they cannot be the quicker ones."""
    port = int(running.url.rpartition(":")[2])
    workers = running.children()
    with ExitStack() as held:
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
            held.callback(_go_on, pid)
        connected = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not _listens(running.pid, port))
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=SHORT)
        for pid in workers:
            _go_on(pid)
        connected.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connected.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_proxys_idle_connection_is_of_use_for_longer_than_nginx_keeps_it(running: Server) -> None:
    """One that a stopping server closes may have a form on its way that nginx does not send again."""
    where = running.url.removeprefix("http://")
    used, idle = HTTPConnection(where, timeout=30), HTTPConnection(where, timeout=30)
    assert "close" not in (_ask(used).headers["Connection"] or "")
    _ask(idle)
    running.process.send_signal(signal.SIGTERM)
    wait_for(lambda: _is_refused(where))
    stopped = time.monotonic()
    last = _ask(used)
    assert (last.status, last.headers["Connection"]) == (200, "close"), "otherwise nginx would send more here"
    time.sleep(max(0.0, stopped + kept_by_nginx() - time.monotonic()))
    last = _ask(idle)
    assert (last.status, last.headers["Connection"]) == (200, "close")
    idle.close()
    used.close()
    assert running.process.wait(60) == 0


def test_nginx_closes_its_idle_connections_first() -> None:
    assert kept_by_nginx() + MARGIN_SECONDS <= STOPPING_PROXY_KEEPALIVE_SECONDS


def _ask(connection: HTTPConnection) -> HTTPResponse:
    """On this very connection: it would be made anew otherwise."""
    if connection.sock is None:
        connection.connect()
    connection.auto_open = 0
    connection.putrequest("GET", "/livez")
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    return answer


def _is_refused(where: str) -> bool:
    host, _, port = where.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=SHORT).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    return False


def _listens(pid: int, port: int) -> bool:
    """Whether this process has the socket that listens there."""
    state = "0A"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == state and row[1].endswith(f":{port:04X}")}
    found = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(file))
    return bool(inodes & found)


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
