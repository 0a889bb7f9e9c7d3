"""What is sent without asking the SDK is what the SDK would send, and so are the errors that come of it."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.providers.anthropic.repeating import QuickClient
from agentapp.agents.providers.anthropic.transport import AnswerStream, DirectTransport
from tests.agents.providers.anthropic.asking import KEY, call, reply_of
from tests.agents.providers.anthropic.test_transport import CHUNKED, HELLO, OK, Server, serving
from tests.support.messages_api import MessagesApi

FIVE = httpx2.Timeout(5.0)
REFUSED = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nrequest-id: req_1\r\ncontent-length: 59\r\n\r\n"
    b'{"type":"error","error":{"type":"rate_limit_error","a": 1}}'
)


def test_what_the_sdk_says_anew_each_time_is_not_said_again() -> None:
    """Such as a key that makes the API answer two requests alike: they may be of two people."""

    class OfTheFuture(QuickClient):
        def _prepare_request(self, request: httpx2.Request) -> None:
            request.headers["x-said-once"] = secrets.token_hex()

    with recording(OfTheFuture) as (client, sent):
        for _ in range(5):
            send(client)
    assert len({request.headers["x-said-once"] for request in sent}) == 5


def test_another_timeout_or_address_is_not_forgotten() -> None:
    with recording(QuickClient) as (client, sent):
        for seconds in (5.0, 5.0, 5.0, 7.0, 7.0, 7.0):
            client.send("/a", b"1", httpx2.Timeout(seconds)).close()
        client.send("/b", b"22", httpx2.Timeout(7.0)).close()
        client.post("/b", cast_to=httpx2.Response, body={"a": "b"}, options={"timeout": FIVE})
    assert [request.extensions["timeout"]["read"] for request in sent] == [5, 5, 5, 7, 7, 7, 7, 5]
    assert [request.headers["x-stainless-read-timeout"] for request in sent[2:5]] == ["5.0", "7.0", "7.0"]
    assert [request.url.path for request in sent[5:]] == ["/gate/a", "/gate/b", "/gate/b"]
    assert [request.content for request in sent[5:]] == [b"1", b"22", b'{"a":"b"}']


def test_a_cookie_is_sent_back_as_long_as_it_is_there() -> None:
    """As the API's own proxy sets them."""
    with recording(QuickClient, **{"set-cookie": "tick=1"}) as (client, sent):
        for _ in range(4):
            send(client)
        client._client.cookies.clear()
        send(client)
    assert [request.headers.get("cookie") for request in sent] == [None, *["tick=1"] * 3, None]


def test_the_third_request_of_a_kind_is_not_built_by_the_sdk() -> None:
    built: list[Any] = []

    class Counting(QuickClient):
        def _build_headers(self, options: Any, **more: Any) -> httpx2.Headers:
            built.append(options)
            return super()._build_headers(options, **more)

    with recording(Counting) as (client, sent):
        for _ in range(4):
            send(client)
    assert len(sent) == 4
    assert len(built) == 2


def test_an_sdk_that_does_not_make_errors_for_us_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Counting(QuickClient):
        def post(self, *given: Any, **more: Any) -> Any:
            asked.append(given)
            return super().post(*given, **more)

    for kind in anthropic.Anthropic.__mro__:
        if "_make_status_error_from_response" in vars(kind):
            monkeypatch.delattr(kind, "_make_status_error_from_response")
    with recording(Counting) as (client, _):
        for _ in range(4):
            send(client)
    assert len(asked) == 4


def test_bytes_that_are_sent_without_httpx_are_those_that_it_sends() -> None:
    answers = [[HELLO]] * 4
    with serving(*answers) as server, direct(server) as client:
        for _ in range(4):
            assert received(client) == b"hello"
        assert server.connections == 1
    first, *others = [sorted(request.split(b"\r\n")) for request in server.requests]
    assert others == [first] * 3
    assert server.requests[3].endswith(b"\r\n\r\n{}")


def test_only_a_plain_answer_is_read_without_httpx() -> None:
    packed = gzip.compress(b"hello")
    zipped = OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s" % (len(packed), packed)
    baked = OK + b"set-cookie: tick=1\r\ncontent-length: 5\r\n\r\nhello"
    with serving([HELLO], [HELLO], [HELLO], [zipped], [baked], [HELLO]) as server, direct(server) as client:
        kinds = []
        for _ in range(6):
            with closing(client.send("/v1/messages", b"{}", FIVE)) as stream:
                kinds.append(type(stream))
                whole = stream if isinstance(stream, AnswerStream) else stream.iter_bytes()
                assert b"".join(whole) == b"hello"
    sdk, quick = httpx2.Response, AnswerStream
    assert kinds == [sdk, sdk, quick, sdk, sdk, quick]
    assert [b"cookie: tick=1" in request.lower() for request in server.requests] == [False] * 5 + [True]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([REFUSED], id="it is refused"),
        pytest.param([b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\noops"], id="it fails"),
        pytest.param([b"HTTP/1.1 302 Go\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"], id="a redirect"),
        pytest.param([b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\noops", None], id="it fails and breaks"),
        pytest.param([None], id="it hangs up"),
        pytest.param([b"no HTTP at all\r\n\r\n"], id="garbled"),
        pytest.param([], id="it hangs"),
    ],
)
def test_an_error_is_what_the_sdk_makes_of_it(answer: list[bytes | None]) -> None:
    timeout = httpx2.Timeout(0.5)

    def fail(good: int) -> tuple[object, ...]:
        with serving(*[[HELLO]] * good, answer) as server, direct(server) as client:
            for _ in range(good):
                received(client, timeout)
            with pytest.raises((anthropic.AnthropicError, httpx2.HTTPError)) as caught:
                received(client, timeout)
        error = caught.value
        response = getattr(error, "response", None)
        described = response and (response.status_code, response.headers, response.text)
        request = getattr(error, "request", None)
        asked = request and (request.method, request.url.path, dict(request.headers).keys())
        return type(error), str(error), getattr(error, "type", None), described, asked, type(error.__cause__)

    assert fail(good=2) == fail(good=0)


def test_nobody_is_asked_to_connect_by_a_client_that_is_closed() -> None:
    with serving(*[[HELLO]] * 3) as server:
        with direct(server) as client:
            received(client)
            received(client)
        with pytest.raises(anthropic.APIConnectionError):
            received(client)
    assert len(server.requests) == 2


def test_the_error_of_a_later_call_does_not_hold_the_key(api: MessagesApi, claude: AnthropicProvider) -> None:
    for _ in range(3):
        reply_of(list(claude.stream(call())))
    api.close()
    with pytest.raises(Exception) as caught:
        list(claude.stream(call()))
    link: BaseException | None = caught.value
    while link is not None:
        assert KEY not in f"{link!r} {link.args}"
        link = link.__cause__


def test_an_answer_that_is_cut_is_noticed() -> None:
    cut = [CHUNKED + b"5\r\nhello\r\n", None]
    with serving([HELLO], [HELLO], cut) as server, direct(server) as client:
        received(client)
        received(client)
        with pytest.raises(httpx2.RemoteProtocolError):
            received(client)


def send(client: QuickClient) -> None:
    client.send("/v1/messages", b"{}", FIVE).close()


def received(client: QuickClient, timeout: httpx2.Timeout = FIVE) -> bytes:
    with closing(client.send("/v1/messages", b"{}", timeout)) as stream:
        return b"".join(stream if isinstance(stream, AnswerStream) else stream.iter_bytes())


@contextmanager
def direct(server: Server) -> Iterator[Any]:
    """As the provider makes it."""
    transport = DirectTransport(httpx2.create_ssl_context())
    network = anthropic.DefaultHttpxClient(transport=transport, follow_redirects=False)
    address = f"http://localhost:{server.port}"
    with QuickClient(api_key=KEY, base_url=address, max_retries=0, http_client=network) as client:
        client.direct = transport
        yield client


@contextmanager
def recording(kind: type[QuickClient], **headers: str) -> Iterator[tuple[QuickClient, list[httpx2.Request]]]:
    """A client that reaches nobody, and what it has sent."""
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        request.read()
        sent.append(request)
        return httpx2.Response(200, json={}, headers=headers)

    network = httpx2.Client(transport=httpx2.MockTransport(answer))
    with kind(api_key=KEY, base_url="http://api.test/gate", max_retries=0, http_client=network) as client:
        yield client, sent
