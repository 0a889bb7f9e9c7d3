"""Which process, event loop or caller a client belongs to."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.anthropic.clients import OwnedClient, QuickClient, SharedClients
from agentapp.errors import ProviderBusy
from tests.agents.providers.anthropic.asking import KEY, InLoop, Threaded, call, reply_of
from tests.support.messages_api import MessagesApi, Script
from tests.support.messages_api.server import Recorded


def test_a_key_with_space_around_it_is_still_that_key(api: MessagesApi) -> None:
    driver = Threaded(AnthropicProvider(f" {KEY}\n", api.url))
    reply_of(driver(call()))
    driver.close()
    assert KEY in api.requests[0].headers["authorization"].split()


def test_nothing_is_opened_before_the_first_call(api: MessagesApi) -> None:
    provider = AnthropicProvider(KEY, api.url)
    provider.stream(call())
    provider.close()
    assert api.connections == 0
    assert provider._clients._made is None


def test_a_forked_process_does_not_use_its_parents_connection(
    api: MessagesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = AnthropicProvider(KEY, api.url)
    reply_of(list(provider.stream(call())))
    parents = provider._clients.get(os.getpid())
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        reply_of(list(provider.stream(call())))
        assert provider._clients.get(-1) is not parents
        provider.close()
    assert not parents.all[0].is_closed()
    assert api.connections == 2
    parents.all[0].close()


def test_each_event_loop_has_its_own_connection(api: MessagesApi) -> None:
    provider = AsyncAnthropicProvider(KEY, api.url)
    one, two = InLoop(provider), InLoop(provider)
    reply_of(one(call()))
    ones = provider._clients.get((os.getpid(), one.runner.get_loop()))
    reply_of(two(call()))
    two.close()
    one.runner.run(ones.close())
    one.close()
    assert api.connections == 2


def test_threads_that_start_together_make_one_client() -> None:
    together, second, made = threading.Barrier(8), threading.Event(), []

    def make() -> object:
        made.append(object())
        if len(made) > 1:
            second.set()
        second.wait(0.2)  # long enough for the others to come in, if they could
        return made[-1]

    def use() -> None:
        together.wait(5)
        kept.get(1)

    kept = OwnedClient(make)
    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_ready_client_is_used_without_its_retries_and_stays_open(api: MessagesApi) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        provider = AnthropicProvider(client=client)
        api.respond_with([Script(status=529), Script(("fine",))])
        with pytest.raises(ProviderBusy):
            list(provider.stream(call()))
        assert len(api.requests) == 1
        assert reply_of(list(provider.stream(call()))).text == "fine"
        provider.close()
        assert not client.is_closed()


def test_each_client_has_few_calls_at_a_time_and_the_first_with_room_is_taken() -> None:
    made: list[int] = []
    clients = SharedClients(lambda: made.append(len(made)) or made[-1], 2)
    with ExitStack() as under_way:
        assert [under_way.enter_context(clients.taken()) for _ in range(5)] == [0, 0, 1, 1, 2]
    with clients.taken() as first, clients.taken() as second:
        assert (first, second) == (0, 0)
    assert len(clients.all) == 3


def test_a_provider_closes_all_its_clients(api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedClients.__init__, "__defaults__", (1,))
    monkeypatch.setenv("HTTP_PROXY", api.url)  # otherwise one client is enough
    provider = AnthropicProvider(KEY, "http://model.invalid")
    for _ in zip_longest(provider.stream(call()), provider.stream(call())):
        pass
    clients = provider._clients.get(os.getpid()).all
    assert len(clients) == 2
    provider.close()
    assert all(client.is_closed() for client in clients)


def test_a_request_that_is_not_built_anew_is_like_the_first(api: MessagesApi) -> None:
    driver = Threaded(AnthropicProvider(KEY, api.url))
    texts = ["one", "two", "thrée 🌍", "four"]
    for text in texts:
        reply_of(driver(call(text)))
    driver.close()
    callers = anthropic.Anthropic(api_key=KEY, base_url=api.url)
    reply_of(Threaded(AnthropicProvider(client=callers))(call("thrée 🌍")))
    callers.close()
    *ours, by_the_sdk = api.requests
    assert [said_last(request) for request in ours] == texts
    assert ours[2].json == by_the_sdk.json
    assert ours[2].headers == by_the_sdk.headers
    same = [{**request.headers, "content-length": ""} for request in ours]
    assert same == [same[0]] * 4


def said_last(request: Recorded) -> str:
    text: str = request.json["messages"][-1]["content"][-1]["text"]
    return text


def test_what_the_sdk_says_anew_each_time_is_not_said_again() -> None:
    """Such as a key that makes the API answer two requests alike: they may be of two people."""

    class OfTheFuture(QuickClient):
        def _build_headers(self, options: Any, **more: Any) -> httpx2.Headers:
            headers = super()._build_headers(options, **more)
            headers["x-said-once"] = secrets.token_hex()
            return headers

    with recording(OfTheFuture) as (client, sent):
        for _ in range(5):
            post(client)
    assert len({request.headers["x-said-once"] for request in sent}) == 5


def test_another_timeout_or_address_or_header_is_not_forgotten() -> None:
    with recording(QuickClient) as (client, sent):
        for seconds in (5.0, 5.0, 5.0, 7.0, 7.0, 7.0):
            timeout = httpx2.Timeout(seconds)
            client.post("/a", cast_to=httpx2.Response, content=b"1", options={"timeout": timeout})
        client.post("/b", cast_to=httpx2.Response, content=b"22", options={"timeout": timeout})
        options: anthropic.RequestOptions = {"timeout": timeout, "headers": {"X-Mine": "yes"}}
        client.post("/b", cast_to=httpx2.Response, content=b"333", options=options)
        client.post("/b", cast_to=httpx2.Response, body={"a": "b"}, options={"timeout": timeout})
    assert [request.extensions["timeout"]["read"] for request in sent] == [5, 5, 5, 7, 7, 7, 7, 7, 7]
    assert [request.headers["x-stainless-read-timeout"] for request in sent[2:5]] == ["5.0", "7.0", "7.0"]
    assert [request.url.path for request in sent[5:]] == ["/gate/a", "/gate/b", "/gate/b", "/gate/b"]
    assert [request.headers.get("x-mine") for request in sent[5:]] == [None, None, "yes", None]
    assert [request.content for request in sent[5:]] == [b"1", b"22", b"333", b'{"a":"b"}']


def test_a_cookie_is_sent_back_as_long_as_it_is_there() -> None:
    """As the API's own proxy sets them."""
    with recording(QuickClient, **{"set-cookie": "tick=1"}) as (client, sent):
        for _ in range(4):
            post(client)
        client._client.cookies.clear()
        post(client)
    assert [request.headers.get("cookie") for request in sent] == [None, *["tick=1"] * 3, None]


def test_the_third_request_of_a_kind_is_not_built_by_the_sdk() -> None:
    built: list[Any] = []

    class Counting(QuickClient):
        def _build_headers(self, options: Any, **more: Any) -> httpx2.Headers:
            built.append(options)
            return super()._build_headers(options, **more)

    with recording(Counting) as (client, sent):
        for _ in range(4):
            post(client)
    assert len(sent) == 4
    assert len(built) == 2


def post(client: QuickClient) -> None:
    """As the provider does it: with a timeout of its own."""
    options: anthropic.RequestOptions = {"timeout": httpx2.Timeout(5.0)}
    client.post("/v1/messages", cast_to=httpx2.Response, content=b"{}", options=options)


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
