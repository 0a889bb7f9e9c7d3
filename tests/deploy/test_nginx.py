"""The shipped nginx configuration, run by a real nginx in front of two hosts."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.hosts import Hosts, hosts, needs_hosts, port_for_a_host
from tests.support.http_client import Stream, Visitor
from tests.support.nginx import CERTIFICATE, Nginx, needs_nginx, nginx
from tests.support.postgres import migrated_postgres_url
from tests.support.server_users import Seat, add_people, rows, seats, wait_for
from tests.support.users import PASSWORD, csrf_of

FAILED_SIGN_INS = 4  # for a name, and five times as many for an address
SHORT_FOR_PAGES = {"proxy_read_timeout 30s;": "proxy_read_timeout 1s;"}

MakeProxy = Callable[..., AbstractContextManager[Nginx]]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with migrated_postgres_url() as url:
        add_people(url, ["ann", "bob"])
        yield url


@pytest.fixture(scope="module")
def running(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    directory = tmp_path_factory.mktemp("hosts")
    with hosts(directory, database, demo_delay=0.05, rate_login=f"{FAILED_SIGN_INS}/hour") as running:
        yield running


@pytest.fixture
def another_proxy(running: Hosts, tmp_path: Path) -> MakeProxy:
    """In front of the same hosts."""
    return partial(nginx, tmp_path, port_for_a_host(), [host.address for host in running])


@pytest.fixture(scope="module")
def ann(running: Hosts) -> Seat:
    return seats(running.url, ["ann"])[0]


def at(proxy: Nginx, seat: Seat) -> Seat:
    """The same person at another address."""
    return Seat(Visitor(proxy.url, 60, dict(seat.visitor.cookies), seat.visitor.csrf), seat.chat)


def stream(seat: Seat, message: str) -> Stream:
    return Stream(seat.visitor, f"/chat/{seat.chat}/messages", {"message": message})


@needs_nginx
@pytest.mark.parametrize("tls_port", [None, 20443])
def test_nginx_finds_no_fault_with_it(tmp_path: Path, tls_port: int | None) -> None:
    assert Nginx(tmp_path / "nginx", 20080, ["127.0.0.1:1", "127.0.0.1:2"], tls_port).check() == ""


@needs_hosts
def test_words_come_one_by_one(ann: Seat, database: str) -> None:
    begun = stream(ann, "/long 20").upto(4)
    assert "running" in ann.statuses(), "all of it came at once"
    assert begun.rest().end["status"] == "completed"


@needs_hosts
def test_the_time_for_pages_is_not_that_for_answers(ann: Seat, another_proxy: MakeProxy) -> None:
    """A page that takes too long is asked for at the other host; an answer may be silent for longer."""
    with (
        another_proxy(changes=SHORT_FOR_PAGES | {"keepalive 64;": ""}) as proxy,
        ThreadPoolExecutor(2) as pool,
    ):
        here = at(proxy, ann)
        silent = pool.submit(here.send, "/slow 2")
        assert here.visitor.get("/chat").status == 200
        answer = silent.result()
        assert (answer.status, "completed") == (200, here.statuses()[-1]), answer.text


@needs_hosts
def test_a_page_is_asked_for_at_the_other_host_if_one_hangs(
    running: Hosts, ann: Seat, another_proxy: MakeProxy
) -> None:
    with another_proxy(changes=SHORT_FOR_PAGES) as proxy:
        here = at(proxy, ann)
        running[0].freeze()
        try:
            assert [here.visitor.get("/chat").status for _ in range(3)] == [200] * 3
        finally:
            running[0].thaw()
    assert "upstream timed out" in proxy.errors(), "the host that hangs was never asked"


@needs_hosts
def test_who_asks_is_who_connected_to_nginx_and_not_who_they_say(running: Hosts) -> None:
    """The limit of failed sign-ins for an address, over both hosts."""

    def try_to_sign_in(number: int, address: str) -> int:
        connection = HTTPConnection("127.0.0.1", running.proxy.port, source_address=(address, 0))
        page = _ask(connection, "GET", "/login", {})
        cookie = page.headers["Set-Cookie"].partition(";")[0]
        form = {"csrf_token": csrf_of(page.read().decode()), "username": f"x{number}", "password": "y" * 20}
        # Of a client that says it is somebody else each time.
        said = {"Cookie": cookie, "X-Forwarded-For": f"192.0.2.{number}"}
        status = _ask(connection, "POST", "/login", said, form).status
        connection.close()
        return status

    of_address = 5 * FAILED_SIGN_INS
    assert [try_to_sign_in(n, "127.0.0.7") for n in range(of_address)] == [401] * of_address
    assert try_to_sign_in(of_address, "127.0.0.7") == 429
    assert try_to_sign_in(of_address + 1, "127.0.0.8") == 401


@needs_hosts
def test_a_body_may_be_as_large_as_the_app_takes_and_no_larger(ann: Seat) -> None:
    too_long = ann.visitor.post(f"/chat/{ann.chat}/messages", "application/json", message="a" * 900_000)
    assert (too_long.status, too_long.headers["Content-Type"]) == (413, "application/problem+json")
    refused = ann.visitor.post(f"/chat/{ann.chat}/messages", "application/json", message="a" * 1_100_000)
    assert (refused.status, refused.headers["Content-Type"]) == (413, "text/html")


@needs_hosts
def test_metrics_are_not_for_the_world(running: Hosts) -> None:
    assert Visitor(running.url).get("/metrics").status == 404


@needs_hosts
def test_connections_to_the_hosts_are_used_again(running: Hosts, ann: Seat, another_proxy: MakeProxy) -> None:
    with another_proxy() as proxy:
        here, before = at(proxy, ann), _connections_to(running)
        for _ in range(20):
            assert here.visitor.get("/livez").status == 200
        opened = _connections_to(running) - before
    assert 1 <= len(opened) <= 4 * len(running), "each of nginx's two processes has one or two to each host"


@needs_hosts
def test_with_tls_the_app_knows_of_it(running: Hosts, another_proxy: MakeProxy) -> None:
    with another_proxy(tls_port=port_for_a_host()) as proxy:
        plain = Visitor(proxy.url).get("/login")
        assert (plain.status, plain.headers["Location"]) == (308, "https://127.0.0.1/login")
        connection = HTTPSConnection("localhost", proxy.tls_port, context=_trusting())
        page = _ask(connection, "GET", "/login", {})
        said = {
            "Cookie": page.headers["Set-Cookie"].partition(";")[0],
            "Origin": f"https://localhost:{proxy.tls_port}",
        }
        form = {"csrf_token": csrf_of(page.read().decode()), "username": "ann", "password": PASSWORD}
        assert _ask(connection, "POST", "/login", said, form).status == 303
        connection.close()


@needs_hosts
def test_if_one_host_is_down_the_other_has_all_the_work(running: Hosts, ann: Seat) -> None:
    running[0].stop(signal.SIGKILL)
    try:
        for _ in range(4):
            assert ann.visitor.get("/chat").status == 200
            assert ann.visitor.post("/theme", theme="dark", next="/chat").status == 303
            assert ann.send("hello").status == 200
    finally:
        running[0].wait_until_ended()
        running[0].start()


@needs_hosts
def test_a_message_is_not_sent_to_the_other_host_when_one_dies_over_it(
    running: Hosts, database: str, another_proxy: MakeProxy
) -> None:
    """Sent twice, it would be refused by the other host, because the turn still runs as far as that knows."""
    with another_proxy() as proxy, ThreadPoolExecutor(1) as pool:
        bob = at(proxy, seats(running.url, ["bob"])[0])
        answering = pool.submit(bob.send, "/long 200")
        wait_for(lambda: bob.statuses() == ["running"])
        ((worker,),) = rows(database, "SELECT worker FROM live_turns")
        host = next(host for host in running if host.has(worker))
        host.stop(signal.SIGKILL)
        try:
            answer = answering.result()
            assert (answer.status, answer.headers["Content-Type"]) == (502, "text/html"), answer.text
            query = "SELECT count(*) FROM messages WHERE role = 'user' AND content = '/long 200'"
            assert rows(database, query) == [(1,)]
        finally:
            host.wait_until_ended()
            host.start()


def _ask(
    connection: HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    form: dict[str, str] | None = None,
) -> HTTPResponse:
    if form is None:
        connection.request(method, path, headers=headers)
        return connection.getresponse()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request(method, path, urlencode(form), headers | kind)
    answer = connection.getresponse()
    answer.read()
    return answer


def _trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def _connections_to(running: Hosts) -> set[str]:
    """Those that are open, by what they are called at this end."""
    ports = {f":{host.port:04X}" for host in running}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "01" and line[2][-5:] in ports}
