"""Cancelling a call of the Messages API from another thread, whichever call has the connection then."""

from __future__ import annotations

import threading
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.provider import Cancellation
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.providers.anthropic.cancelling import Sending, make_cancellable, sending_for
from agentapp.errors import (
    ProviderError,
)
from tests.agents.drivers.halts import (
    FirstText,
    Halt,
    all_connections_close,
    asked,
    play_halted,
    reading_threads_end,
    turn,
)
from tests.agents.providers.anthropic.asking import KEY, call, good, reply_of
from tests.support.messages_api import MessagesApi, Script


def test_a_call_cancelled_before_it_begins_sends_nothing(api: MessagesApi, claude: AnthropicProvider) -> None:
    asking = call()
    asking.cancellation.cancel()
    with pytest.raises(ProviderError):
        list(claude.stream(asking))
    assert all_connections_close(api)
    assert api.requests == ()


class NeverCleared(Cancellation):
    """Keeps its action when the call is over, as if it were cancelled at the worst moment."""

    def clear(self) -> None:
        pass


def test_a_late_cancel_leaves_the_call_alone_that_has_the_connection_now(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    before = call(cancellation=NeverCleared())
    reply_of(list(claude.stream(before)))
    go_on = threading.Event()

    def when_told(_: object) -> Script:
        go_on.wait(30)
        return Script(("undisturbed",))

    api.respond_with(when_told)
    threading.Thread(
        target=lambda: (asked(api, 2)(), before.cancellation.cancel(), go_on.set()), name="agentapp-late"
    ).start()
    assert reply_of(list(claude.stream(call()))).text == "undisturbed"
    assert api.connections == 1


def test_a_call_that_is_over_cannot_shut_down_the_connection_that_is_kept(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    before = call(cancellation=NeverCleared())
    reply_of(list(claude.stream(before)))
    before.cancellation.cancel()
    assert reply_of(list(claude.stream(call()))).text == "You said: hello"
    assert (len(api.requests), api.connections) == (2, 1)


def test_a_connection_shut_down_while_the_pool_hands_it_out_is_changed_for_another(api: MessagesApi) -> None:
    before, current = NeverCleared(), Cancellation()
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}

    def cancel_before(event: str, _: object) -> None:
        if event == "http11.send_request_headers.started":
            before.cancel()

    with make_cancellable(httpx2.Client(base_url=api.url, headers=headers, trust_env=False)) as client:
        with sending_for(Sending(before, lambda: None)):
            assert client.post("/v1/messages", json=good()).status_code == 200
        with sending_for(Sending(current, lambda: None)):
            answer = client.post("/v1/messages", json=good(), extensions={"trace": cancel_before})
            assert answer.status_code == 200
    assert before.is_cancelled
    assert (len(api.requests), api.connections) == (2, 2)


def test_a_call_through_a_proxy_can_be_cancelled(api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", api.url)
    provider = AnthropicProvider(KEY, "http://model.invalid")
    play_halted(provider, turn("[[hang:60]]"), Halt(asked(api)))
    assert reading_threads_end()
    assert all_connections_close(api)
    provider.close()


def test_a_call_of_a_client_of_the_callers_can_be_cancelled_once_it_has_the_head(api: MessagesApi) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        provider, first_text = AnthropicProvider(client=client), FirstText()
        play_halted(provider, turn("[[stall:60]] one two"), Halt(first_text.wait), seen=first_text)
        assert reading_threads_end()
        assert all_connections_close(api)
        asking = call(cancellation=NeverCleared())
        reply_of(list(provider.stream(asking)))
        asking.cancellation.cancel()
        assert reply_of(list(provider.stream(call()))).text == "You said: hello"
        assert api.connections == 2, "what is over is left alone"


def test_a_client_whose_pools_are_not_found_is_left_as_it_is() -> None:
    class OfTomorrow:
        """Keeps them under other names."""

    client: Any = OfTomorrow()
    assert make_cancellable(client) is client
    assert vars(client) == {}
