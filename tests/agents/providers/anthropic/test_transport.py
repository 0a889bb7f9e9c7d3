"""The HTTP transport of the SDK's client, against a server that says just what a test wants."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from agentapp.agents.drivers.in_place import WaitInPlace
from agentapp.agents.drivers.shared import Deadlines, nothing
from agentapp.agents.provider import Cancellation
from agentapp.agents.providers.anthropic.cancelling import Sending, sending_for
from agentapp.agents.providers.anthropic.connection import KEEPALIVE_SECONDS, Connection
from agentapp.agents.providers.anthropic.transport import MAX_HEAD_BYTES, DirectTransport

PEM = Path(__file__).parents[3] / "support" / "localhost.pem"
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


class Server:
    """Sends the next of its answers for each request, in pieces; ``None`` among them hangs up."""

    def __init__(self, answers: Sequence[Sequence[bytes | None]], tls: ssl.SSLContext | None = None) -> None:
        self._answers, self._tls = list(answers), tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self.asked = threading.Semaphore(0)

    def serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(accepted)
            threading.Thread(target=self._talk, args=(accepted,), name="scripted").start()

    def _talk(self, client: socket.socket) -> None:
        try:
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
                self._open.append(client)
            while request := client.recv(1_000_000):
                self.requests.append(request)
                self.asked.release()
                for piece in self._answers.pop(0) if self._answers else ():
                    if piece is None:
                        client.close()
                        return
                    client.sendall(piece)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(each, socket.SHUT_RDWR)
            each.close()


@contextmanager
def serving(*answers: Sequence[bytes | None], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    before = set(threading.enumerate())
    server = Server(answers, tls)
    accepting = threading.Thread(target=server.serve, name="accepting")
    accepting.start()
    try:
        yield server
    finally:
        server.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    trusting = ssl.create_default_context(cafile=str(PEM))
    with httpx2.Client(transport=DirectTransport(trusting), timeout=5) as made:
        yield made


def ask(client: httpx2.Client, server: Server, scheme: str = "http") -> httpx2.Response:
    return client.post(f"{scheme}://localhost:{server.port}/v1/messages", content=b"question")


def kept(client: httpx2.Client) -> Connection:
    """The one connection that is kept for another call."""
    transport = client._transport
    assert isinstance(transport, DirectTransport)
    ((connection,),) = transport._free.values()
    return connection


def wait_until(holds: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 10
    while not holds() and time.monotonic() < ends:
        time.sleep(0.005)
    return holds()


def test_a_request_is_one_message_with_its_headers_and_its_body(client: httpx2.Client) -> None:
    with serving([HELLO]) as server:
        assert ask(client, server).text == "hello"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert f"\r\nHost: localhost:{server.port}".encode().lower() in head.lower()
    assert b"\r\ncontent-length: 8" in head.lower()
    assert body == b"question"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([CHUNKED, b"5\r\nhel", b"lo\r\n", b"0\r\n\r\n"], "hello"),
        ([CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"], "hello"),
        ([OK, b"content-length: 5\r\n\r\n", b"he", b"llo"], "hello"),
        ([OK + b"content-length: 0\r\n\r\n"], ""),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO], "hello"),
        ([b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", HELLO], "hello"),
        ([OK + b"\r\nhello", None], "hello"),  # its end is where the server hangs up
    ],
)
def test_answers_of_every_form_are_read_to_their_end(
    client: httpx2.Client, pieces: list[bytes | None], text: str
) -> None:
    with serving(pieces) as server:
        answer = ask(client, server)
        assert (answer.status_code, answer.text) == (200, text)
        assert "link" not in answer.headers


def test_a_compressed_answer_is_read(client: httpx2.Client) -> None:
    packed = gzip.compress(b"hello")
    head = OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    with serving([head, packed]) as server:
        assert ask(client, server).text == "hello"


def test_a_connection_is_used_again_as_long_as_both_sides_keep_it(client: httpx2.Client) -> None:
    closing = OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello"
    with serving([HELLO], [CHUNKED, b"0\r\n\r\n"], [closing], [HELLO]) as server:
        for connections in (1, 1, 1, 2):
            ask(client, server)
            assert server.connections == connections


def test_a_connection_that_was_closed_while_it_was_idle_is_not_used(client: httpx2.Client) -> None:
    with serving([HELLO, None], [HELLO]) as server:
        ask(client, server)
        connection = kept(client)
        assert wait_until(lambda: not connection.is_alive())
        assert ask(client, server).text == "hello"
        assert server.connections == 2


def test_a_connection_is_not_used_again_unless_its_answer_was_read_out(client: httpx2.Client) -> None:
    with serving([HELLO], [HELLO]) as server:
        url = f"http://localhost:{server.port}/"
        with client.stream("POST", url, content=b"a") as answer:
            next(answer.iter_raw())
        assert ask(client, server).text == "hello"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([None], httpx2.RemoteProtocolError),
        ([OK[:5], None], httpx2.RemoteProtocolError),
        ([b"SSH-2.0-OpenSSH\r\n"], httpx2.RemoteProtocolError),
        ([CHUNKED, b"zz\r\n"], httpx2.RemoteProtocolError),
        ([CHUNKED, b"5\r\nhel", None], httpx2.RemoteProtocolError),
        ([OK + b"content-length: 50\r\n\r\nhello", None], httpx2.RemoteProtocolError),
        ([OK + b"x: " + b"y" * MAX_HEAD_BYTES, b"y" * 9], httpx2.RemoteProtocolError),
        ([OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"], httpx2.RemoteProtocolError),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_ends_its_connection(
    client: httpx2.Client, pieces: list[bytes | None], error: type[Exception]
) -> None:
    with serving(pieces, [HELLO]) as server:
        with pytest.raises(error):
            ask(client, server)
        assert ask(client, server).text == "hello"
        assert server.connections == 2


def test_what_comes_after_an_answer_is_nobodys(client: httpx2.Client) -> None:
    """Otherwise the next call would take it for its own answer."""
    with serving([HELLO + HELLO.replace(b"hello", b"other")], [HELLO]) as server:
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(client, server)
        assert ask(client, server).text == "hello"
        assert server.connections == 2


def test_a_header_cannot_hold_another(client: httpx2.Client) -> None:
    with serving([HELLO]) as server, pytest.raises(httpx2.LocalProtocolError):
        client.post(f"http://localhost:{server.port}/", headers=[(b"x-key", b"a\r\nx-other: b")])
    assert server.requests == []


def test_nobody_there_is_told_from_no_answer(client: httpx2.Client) -> None:
    with serving() as server, pytest.raises(httpx2.ReadTimeout):
        client.post(f"http://localhost:{server.port}/", timeout=0.1)
    with pytest.raises(httpx2.ConnectError):
        client.post(f"http://localhost:{server.port}/")
    with pytest.raises(httpx2.ConnectError):
        client.post("http://no-such-host.invalid/")
    with pytest.raises(httpx2.UnsupportedProtocol):
        client.post("ftp://localhost/")


def test_over_tls_the_certificate_must_be_of_the_host(client: httpx2.Client) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    with serving([HELLO], [HELLO], tls=context) as server:
        assert ask(client, server, "https").text == "hello"
        assert ask(client, server, "https").text == "hello"
        assert server.connections == 1
    strict = httpx2.Client(transport=DirectTransport(ssl.create_default_context()))
    with serving([HELLO], tls=context) as server, strict, pytest.raises(httpx2.ConnectError):
        ask(strict, server, "https")


@contextmanager
def waiting_in_place(before_wait: Callable[[], object] = nothing) -> Iterator[Cancellation]:
    cancellation = Cancellation()
    waiting = WaitInPlace(Deadlines(tick=0.05), 1e12, cancellation, before_wait)
    with sending_for(Sending(cancellation, nothing, waiting)):
        yield cancellation


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("said", [(), (CHUNKED, b"5\r\nhello\r\n")], ids=["nothing", "half"])
def test_a_call_is_given_up_at_any_moment(client: httpx2.Client, scheme: str, said: Sequence[bytes]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    with serving(said, [HELLO], tls=context if scheme == "https" else None) as server:
        with waiting_in_place() as cancellation:
            cancelling = threading.Thread(target=lambda: (server.asked.acquire(), cancellation.cancel()))
            cancelling.start()
            with pytest.raises(httpx2.HTTPError):
                ask(client, server, scheme)
            cancelling.join(10)
        assert ask(client, server, scheme).text == "hello"
        assert server.connections == 2


def test_while_a_call_waits_its_thread_looks_after_other_things(client: httpx2.Client) -> None:
    looked = threading.Semaphore(0)
    with serving([]) as server, waiting_in_place(looked.release) as cancellation:
        looking = threading.Thread(
            target=lambda: ([looked.acquire() for _ in range(5)], cancellation.cancel())
        )
        looking.start()
        with pytest.raises(httpx2.HTTPError):
            ask(client, server)
        looking.join(10)


def test_connections_that_nobody_needs_any_more_are_closed(client: httpx2.Client) -> None:
    """After a crowd, only the one that was used last is used again: the others would stay for ever."""
    with serving([HELLO], [HELLO], [HELLO]) as server:
        url = f"http://localhost:{server.port}/"
        with client.stream("POST", url) as first, client.stream("POST", url) as second:
            first.read()
            second.read()
        transport = client._transport
        assert isinstance(transport, DirectTransport)
        ((oldest, _),) = transport._free.values()
        oldest.idle_since -= KEEPALIVE_SECONDS + 1
        ask(client, server)
        assert kept(client) is not oldest
        assert oldest._socket.fileno() == -1


def test_nothing_of_a_call_stays_with_the_connection_that_is_kept(client: httpx2.Client) -> None:
    with serving([HELLO]) as server, waiting_in_place():
        ask(client, server)
        connection = kept(client)
    assert connection._owner is connection._sending is None


def test_many_calls_at_once_have_a_connection_each(client: httpx2.Client) -> None:
    answered: list[str] = []
    with serving(*[[HELLO]] * 64) as server:
        for _ in range(2):
            calls = [
                threading.Thread(target=lambda: answered.append(ask(client, server).text)) for _ in range(32)
            ]
            for each in calls:
                each.start()
            for each in calls:
                each.join(30)
        assert answered == ["hello"] * 64
        assert server.connections <= 32
