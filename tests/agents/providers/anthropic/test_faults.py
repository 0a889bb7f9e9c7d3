"""Connections that break, hang or cannot be made, and requests that cannot be sent."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.meter import estimated_tokens
from agentapp.agents.provider import Message, ToolCall
from agentapp.agents.providers.anthropic.errors import SENTENCES
from agentapp.errors import (
    ProviderBusy,
    ProviderError,
    ProviderGarbled,
    ProviderMisconfigured,
    ProviderRejected,
    ProviderTimeout,
)
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import EVENTS, KEY, KINDS, call, reply_of
from tests.support.messages_api import MessagesApi, Script, events_of


def pinging(kind: str) -> Any:
    """Drives a provider whose API starts an answer and then only pings."""

    def events() -> Iterator[bytes]:
        yield f"event: message_start\ndata: {json.dumps(EVENTS[0])}\n\n".encode()
        while True:
            time.sleep(0.02)
            yield b'event: ping\ndata: {"type": "ping"}\n\n'

    async def async_events() -> AsyncIterator[bytes]:
        for event in events():
            yield event

    drive, provider = KINDS[kind]
    sdk, http, content = {
        "sync": (anthropic.Anthropic, httpx2.Client, events),
        "async": (anthropic.AsyncAnthropic, httpx2.AsyncClient, async_events),
    }[kind]
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=content()))
    return drive(provider(client=sdk(api_key=KEY, http_client=http(transport=transport))))


@pytest.mark.parametrize("kind", KINDS)
def test_an_api_that_only_pings_is_left_after_the_timeout(kind: str) -> None:
    driver, start = pinging(kind), time.monotonic()
    with pytest.raises(ProviderTimeout) as caught:
        driver(call(timeout=0.3))
    assert 0.25 < time.monotonic() - start < 3
    assert caught.value.usage == Usage(3, 1, 1)
    driver.close()


def test_the_key_does_not_follow_a_redirect(ask: Any, api: MessagesApi) -> None:
    with MessagesApi() as elsewhere:
        api.respond_with(Script(status=307, location=f"{elsewhere.url}/v1/messages"))
        with pytest.raises(ProviderRejected):
            ask(call())
        assert (len(api.requests), elsewhere.connections) == (1, 0)


FAULTS = {
    "cut:500": ProviderGarbled,
    "reset:500": ProviderGarbled,
    "end-early": ProviderGarbled,
    "garbage": ProviderGarbled,
    "error-event:overloaded_error": ProviderBusy,
    "error-event:api_error": ProviderBusy,
    "error-event:rate_limit_error": ProviderBusy,
    "error-event:invalid_request_error": ProviderRejected,
    "error-event:of_the_future": ProviderGarbled,
    "stall:60": ProviderTimeout,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_stream_keeps_what_was_spent(ask: Any, api: MessagesApi, fault: str) -> None:
    api.respond_with(Script(("Hello ", "world"), fault=fault, input_tokens=17, output_tokens=5))
    with pytest.raises(ProviderError) as caught:
        ask(call(timeout=0.3 if fault.startswith("stall") else 10.0))
    assert type(caught.value) is FAULTS[fault]
    # What message_start said of the input; how much came out was never said, so what was heard counts.
    heard = {"cut:500": "", "reset:500": "", "stall:60": "Hello "}.get(fault, "Hello world")
    assert caught.value.usage == Usage(17, max(1, estimated_tokens((heard,))), 1)
    assert str(caught.value) == SENTENCES[FAULTS[fault]]
    assert isinstance(caught.value.__cause__, Exception)
    assert len(api.requests) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_connection_with_a_fault_is_closed_and_the_next_call_works(
    ask: Any, api: MessagesApi, fault: str
) -> None:
    api.respond_with([Script(("Hello ", "world"), fault=fault)])
    with pytest.raises(ProviderError) as caught:
        ask(call(timeout=0.3 if fault.startswith("stall") else 10.0))
    if fault != "end-early":  # that one was a whole response of HTTP, though no whole answer
        assert api.wait_until(lambda api: api.open_connections == 0)
    assert caught.tb  # until here it kept the stream alive, so that only closing it could free the connection
    assert reply_of(ask(call("again"))).text == "You said: again"


def test_a_cut_stream_is_never_a_reply(ask: Any, api: MessagesApi) -> None:
    whole = Script(("Hello ", "world, ", "how are you?"), tools=(("add", {"a": 1}),))
    api.respond_with(whole)
    reply_of(ask(call()))
    events = list(events_of(whole, api.requests[0].json, 1))
    body = b"".join(event.data for event in events)
    assert len(body) > 1000
    for n in range(0, len(body), 7):
        api.respond_with(Script(whole.pieces, whole.tools, fault=f"cut:{n}"))
        with pytest.raises(ProviderGarbled) as caught:
            ask(call())
        assert (caught.value.usage.input_tokens > 0) == (n >= len(events[0].data))
    assert api.wait_until(lambda api: api.open_connections == 0)


def test_an_answer_that_came_whole_counts_even_if_the_connection_then_breaks(
    ask: Any, api: MessagesApi
) -> None:
    api.respond_with(Script(("Hello",), fault="cut:1000000"))
    assert reply_of(ask(call())).text == "Hello"


@pytest.mark.parametrize(
    ("text", "timeout"),
    [("[[hang:60]]", 0.3), ("[[stall:60]] one two", 1.0)],  # enough for the first word on a busy machine
    ids=["hang", "stall"],
)
def test_silence_longer_than_the_timeout_ends_the_call(
    ask: Any, api: MessagesApi, text: str, timeout: float
) -> None:
    start = time.monotonic()
    with pytest.raises(ProviderTimeout) as caught:
        ask(call(text, timeout=timeout))
    assert 0.9 * timeout < time.monotonic() - start < 15
    assert caught.value.usage.model_calls == 1
    assert caught.value.said_something == ("one" in text)


def test_a_slow_answer_may_take_longer_than_the_timeout(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("tick ",) * 7, pause=0.1))
    assert reply_of(ask(call(timeout=0.5))).text == "tick " * 7


@pytest.mark.parametrize(("drive", "provider"), KINDS.values(), ids=KINDS)
def test_a_provider_that_cannot_be_reached_is_busy_and_cost_no_call(drive: Any, provider: Any) -> None:
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        driver = drive(provider(KEY, f"http://127.0.0.1:{bound.getsockname()[1]}"))
        with pytest.raises(ProviderBusy) as caught:
            driver(call())
    driver.close()
    assert caught.value.usage == Usage()


@contextmanager
def never_accepting() -> Iterator[str]:
    """An address that nobody answers at: its queue of connections to accept is full."""
    with ExitStack() as open_sockets:
        server = open_sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(("drive", "provider"), KINDS.values(), ids=KINDS)
def test_a_provider_that_does_not_take_the_call_is_left_after_the_timeout(drive: Any, provider: Any) -> None:
    with never_accepting() as url:
        driver, start = drive(provider(KEY, url)), time.monotonic()
        with pytest.raises(ProviderTimeout) as caught:
            driver(call(timeout=0.3))
        assert 0.25 < time.monotonic() - start < 3
    driver.close()
    assert caught.value.usage == Usage()


@pytest.mark.parametrize(("drive", "provider"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("key", "url"), [("", None), (KEY + "\nx", None), ("ключ", None), (KEY, "nowhere")])
def test_settings_that_cannot_work_are_rejected_without_a_call(
    drive: Any, provider: Any, key: str, url: str | None, api: MessagesApi, caplog: pytest.LogCaptureFixture
) -> None:
    driver = drive(provider(key, url or api.url))
    with pytest.raises(ProviderRejected) as caught:
        driver(call())
    driver.close()
    assert (caught.value.usage, api.connections) == (Usage(), 0)
    assert type(caught.value) is ProviderMisconfigured, "only the operator can change it"
    assert not key or key not in caplog.text + "".join(traceback.format_exception(caught.value))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "half a pair: \ud83c"},
        {"system": "\udc80"},
        {"messages": (Message("assistant", calls=(ToolCall("t", "add", {"a": float("nan")}),)),)},
        {"messages": (Message("assistant", calls=(ToolCall("t", "add", {"a": object()}),)),)},
        {"messages": (Message("assistant", calls=(ToolCall("t", "add", nested(10_000)),)),)},
    ],
    ids=["text", "system", "nan", "object", "deep"],
)
def test_a_request_that_cannot_be_written_is_rejected_without_a_call(
    ask: Any, api: MessagesApi, changes: dict[str, Any]
) -> None:
    with pytest.raises(ProviderRejected) as caught:
        ask(call(**changes))
    assert (caught.value.usage, caught.value.said_something, api.connections) == (Usage(), False, 0)
    assert caught.value.blame == "turn"
    assert reply_of(ask(call("again"))).text == "You said: again"
