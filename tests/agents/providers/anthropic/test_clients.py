"""Which process, event loop or caller a client belongs to."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from itertools import zip_longest

import anthropic
import pytest

from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.anthropic.clients import OwnedClient, SharedClients
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
