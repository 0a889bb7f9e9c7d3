"""The provider, driven with the real SDK against a local Messages API; every claim holds for both kinds."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager
from email.utils import formatdate
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, ToolResult, ToolSpec
from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.anthropic.clients import OwnedClient
from agentapp.agents.providers.anthropic.errors import SENTENCES, CutShort, retry_after_of, translate_error
from agentapp.agents.providers.anthropic.messages import Assembler, request_for
from agentapp.errors import ProviderBusy, ProviderError, ProviderGarbled, ProviderRejected, ProviderTimeout
from agentapp.events import Usage
from tests.support.messages_api import MessagesApi, Script, Tokens, events_of

KEY = "sk-ant-api03-not-a-real-key"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1/messages", headers={"x-api-key": KEY})


def without_usage(items: list[Any]) -> list[str | Reply]:
    """Without what is told in between of the cost so far."""
    return [item for item in items if not isinstance(item, Usage)]


class Threaded:
    """Drives a provider as the WSGI side does."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def __call__(self, call: ModelCall) -> list[str | Reply]:
        return without_usage(self.all(call))

    def all(self, call: ModelCall) -> list[Any]:
        return list(self.provider.stream(call))

    def abandon(self, call: ModelCall) -> str:
        with closing(self.provider.stream(call)) as items:
            return next(item for item in items if item and isinstance(item, str))

    def close(self) -> None:
        self.provider.close()


class InLoop:
    """Drives an async provider from sync tests, all calls in one event loop."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.runner = asyncio.Runner()

    def __call__(self, call: ModelCall) -> list[str | Reply]:
        return without_usage(self.all(call))

    def all(self, call: ModelCall) -> list[Any]:
        async def collect() -> list[Any]:
            return [item async for item in self.provider.stream(call)]

        return self.runner.run(collect())

    def abandon(self, call: ModelCall) -> str:
        async def take() -> str:
            async with aclosing(self.provider.stream(call)) as items:
                return await anext(item async for item in items if item and isinstance(item, str))

        return self.runner.run(take())

    def close(self) -> None:
        self.runner.run(self.provider.close())
        self.runner.close()


KINDS = {"sync": (Threaded, AnthropicProvider), "async": (InLoop, AsyncAnthropicProvider)}


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    before = set(threading.enumerate())
    with MessagesApi() as running:
        yield running
    assert set(threading.enumerate()) <= before


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, api: MessagesApi) -> Iterator[Any]:
    drive, provider = KINDS[request.param]
    driver = drive(provider(KEY, api.url))
    yield driver
    driver.close()


def call(text: str = "hello", **changes: Any) -> ModelCall:
    values = {"model": "claude-test", "system": "Be brief.", "messages": (Message("user", (text,)),)}
    return ModelCall(**values | {"timeout": 10.0} | changes)


def reply_of(items: list[Any]) -> Reply:
    *pieces, reply = without_usage(items)
    assert isinstance(reply, Reply)
    assert "".join(pieces) == reply.text
    return reply


def test_text_arrives_in_pieces_and_the_reply_is_all_of_them(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("Hel", "lo, ", "wörld 🌍"), input_tokens=11, output_tokens=5))
    items = ask(call())
    assert [item for item in items if isinstance(item, str) and item] == ["Hel", "lo, ", "wörld 🌍"]
    assert reply_of(items) == Reply("Hello, wörld 🌍", (), Usage(11, 5, 1), "end_turn")


def test_what_it_has_cost_so_far_is_told_as_soon_as_it_is_known(ask: Any, api: MessagesApi) -> None:
    """The input before anything else, for the case that nobody waits for the end."""
    api.respond_with(Script(("a", "b"), input_tokens=11, output_tokens=5))
    first, *_, last, reply = ask.all(call())
    assert (first, last, reply.usage) == (Usage(11, 1, 1), Usage(11, 5, 1), Usage(11, 5, 1))


def test_only_content_is_progress(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("a", "b")))
    # (message_start) content_block_start (ping) a, b, content_block_stop (message_delta, message_stop)
    assert ask(call())[:-1] == ["", "a", "b", ""]


def test_an_answer_without_content_shows_no_progress(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(stop_reason="refusal"))
    assert [type(item) for item in ask(call())] == [Reply]


def test_a_tools_input_is_progress_that_shows_nothing(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(tools=(("add", {"a": 1}),)))
    # content_block_start (ping) three pieces of input, content_block_stop
    assert ask(call())[:-1] == ["", "", "", "", ""]


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


def test_several_tool_calls_come_in_order_with_their_input(ask: Any, api: MessagesApi) -> None:
    api.respond_with(
        Script(("I will add.",), tools=(("add", {"a": 1, "b": [2]}), ("now", {}), ("add", {"a": 3})))
    )
    reply = reply_of(ask(call(tools=(ADD,))))
    assert [(c.name, c.input) for c in reply.calls] == [
        ("add", {"a": 1, "b": [2]}),
        ("now", {}),
        ("add", {"a": 3}),
    ]
    assert len({c.id for c in reply.calls}) == 3
    assert (reply.text, reply.stop_reason) == ("I will add.", "tool_use")


@pytest.mark.parametrize("raw", ['{"a": 1', "[" * 100_000, "not json"], ids=["cut", "deep", "words"])
def test_tool_input_that_does_not_parse_is_handed_over_raw(ask: Any, api: MessagesApi, raw: str) -> None:
    api.respond_with(Script(tools=(("add", raw),)))
    assert [c.input for c in reply_of(ask(call())).calls] == [raw]


def test_cached_tokens_are_input_tokens(ask: Any, api: MessagesApi) -> None:
    numbers = {"input_tokens": 10, "cache_read_tokens": 200, "cache_creation_tokens": 30, "output_tokens": 7}
    api.respond_with(Script(("x",), **numbers))
    assert reply_of(ask(call())).usage == Usage(240, 7, 1)


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "stop_sequence", "pause_turn", "of_the_future"])
def test_the_stop_reason_is_passed_on(ask: Any, api: MessagesApi, reason: str) -> None:
    api.respond_with(Script(("x",), stop_reason=reason))
    assert reply_of(ask(call())).stop_reason == reason


def test_an_answer_without_any_content_is_an_empty_reply(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(stop_reason="refusal", input_tokens=3, output_tokens=1))
    assert reply_of(ask(call())) == Reply("", (), Usage(3, 1, 1), "refusal")


def test_a_conversation_with_tools_is_sent_as_the_api_wants_it(ask: Any, api: MessagesApi) -> None:
    calls = (ToolCall("t1", "add", {"a": 1}), ToolCall("t2", "add", "{broken"), ToolCall("t3", "add", [1]))
    results = (ToolResult("t1", "2"), ToolResult("t2", "bad", is_error=True), ToolResult("t3", ""))
    messages = (
        Message("user", ("", "add", " \n")),
        Message("assistant", ("",)),
        Message("assistant", ("", "Adding."), calls=calls),
        Message("user", ("and?",), results=results),
    )
    reply_of(ask(call(messages=messages, tools=(ADD,), max_tokens=99)))
    sent = api.requests[0].json
    assert sent == {
        "model": "claude-test",
        "max_tokens": 99,
        "stream": True,
        "system": "Be brief.",
        "tools": [{"name": "add", "description": "Adds.", "input_schema": dict(ADD.input_schema)}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "add"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Adding."},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "t2", "name": "add", "input": {"input": "{broken"}},
                    {"type": "tool_use", "id": "t3", "name": "add", "input": {"input": [1]}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "2"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "bad", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "t3", "content": "(empty)"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


def test_a_blank_system_and_no_tools_are_not_sent() -> None:
    assert not {"system", "tools"} & request_for(call(system=" ")).keys()


def test_connecting_may_take_five_seconds_at_most() -> None:
    timeouts = [request_for(call(timeout=seconds))["timeout"] for seconds in (60, 0.3)]
    assert [(t.connect, t.read, t.write, t.pool) for t in timeouts] == [(5, 60, 60, 60), (0.3, 0.3, 0.3, 0.3)]


STATUSES = {
    **dict.fromkeys((307, 400, 401, 402, 403, 404, 409, 413, 418, 422, 431), ProviderRejected),
    408: ProviderTimeout,
    **dict.fromkeys((429, 500, 502, 503, 504, 529), ProviderBusy),
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_has_its_error_and_is_asked_once(ask: Any, api: MessagesApi, status: int) -> None:
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert type(caught.value) is STATUSES[status]
    assert (caught.value.usage, caught.value.retry_after) == (Usage(model_calls=1), None)
    assert not caught.value.said_something
    assert len(api.requests) == 1


BLAMED = {
    **dict.fromkeys((400, 413), "turn"),
    **dict.fromkeys((401, 402, 403, 404, 408, 429, 500, 503, 529), "provider"),
}


@pytest.mark.parametrize("status", BLAMED)
def test_only_what_is_wrong_with_the_request_itself_is_held_against_its_chat_alone(
    ask: Any, api: MessagesApi, status: int
) -> None:
    """A wrong key or model fails for everybody; a message that is too long fails for the one who wrote it."""
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert caught.value.blame == BLAMED[status]


@pytest.mark.parametrize(
    ("fault", "blame"),
    [
        ("error-event:invalid_request_error", "turn"),
        ("error-event:request_too_large", "turn"),
        ("error-event:authentication_error", "provider"),
        ("error-event:overloaded_error", "provider"),
        ("cut:500", "provider"),
    ],
)
def test_a_fault_in_the_stream_is_held_against_the_one_whose_it_is(
    ask: Any, api: MessagesApi, fault: str, blame: str
) -> None:
    api.respond_with(Script(("Hello ", "world"), fault=fault))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert caught.value.blame == blame


def test_an_account_without_credit_is_everybodys_trouble(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(status=400, message="Your credit balance is too low to access the API."))
    with pytest.raises(ProviderRejected) as caught:
        ask(call())
    assert caught.value.blame == "provider"


def test_blaming_one_request_blames_no_other(ask: Any, api: MessagesApi) -> None:
    api.respond_with([Script(status=400), Script(status=401)])
    for blame in ("turn", "provider"):
        with pytest.raises(ProviderRejected) as caught:
            ask(call())
        assert caught.value.blame == blame
    assert ProviderRejected.blame == "provider"


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
    assert caught.value.usage == Usage(17, 1, 1)  # what message_start said; the rest never came
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


def test_calls_one_after_the_other_share_a_connection(ask: Any, api: MessagesApi) -> None:
    for _ in range(3):
        reply_of(ask(call()))
    assert (len(api.requests), api.connections) == (3, 1)


def test_an_abandoned_answer_frees_its_connection_at_once(ask: Any, api: MessagesApi) -> None:
    api.respond_with([Script(("Hello ", "world"), fault="stall:60")])
    assert ask.abandon(call()) == "Hello "
    assert api.wait_until(lambda api: (api.in_progress, api.open_connections) == (0, 0))
    assert reply_of(ask(call("next"))).text == "You said: next"


@pytest.mark.parametrize("text", ["[[hang:60]]", "[[stall:60]] one two"], ids=["hang", "stall"])
def test_silence_longer_than_the_timeout_ends_the_call(ask: Any, api: MessagesApi, text: str) -> None:
    start = time.monotonic()
    with pytest.raises(ProviderTimeout) as caught:
        ask(call(text, timeout=1.5))  # enough for the first word on a busy machine
    assert 1.4 < time.monotonic() - start < 15
    assert caught.value.usage.model_calls == 1
    assert caught.value.said_something == ("one" in text)


def test_a_slow_answer_may_take_longer_than_the_timeout(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("tick ",) * 6, pause=0.2))
    assert reply_of(ask(call(timeout=0.6))).text == "tick " * 6


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
    assert caught.value.blame == "provider", "nobody's request can be sent"
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


def test_a_key_with_space_around_it_is_still_that_key(api: MessagesApi) -> None:
    driver = Threaded(AnthropicProvider(f" {KEY}\n", api.url))
    reply_of(driver(call()))
    driver.close()
    assert KEY in api.requests[0].headers["authorization"].split()


@pytest.mark.parametrize("header", ["3", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_retry_after_is_read_from_the_answer(ask: Any, api: MessagesApi, header: str) -> None:
    api.respond_with(Script(status=429, retry_after=header))
    with pytest.raises(ProviderBusy) as caught:
        ask(call())
    assert caught.value.retry_after == 3 if header == "3" else caught.value.retry_after > 1e6


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0.25", 0.25),
        ("-5", 0),
        (formatdate(1_000_030, usegmt=True), 30),
        (formatdate(999_000, usegmt=True), 0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("99 Foo 9999999999 99:99", None),
    ],
)
def test_retry_after_may_be_seconds_or_a_date(header: str, seconds: float | None) -> None:
    response = httpx2.Response(529, headers={"retry-after": header}, request=REQUEST)
    exc = anthropic.APIStatusError("busy", response=response, body=None)
    assert retry_after_of(exc, now=1_000_000) == seconds
    assert retry_after_of(ValueError(), now=1_000_000) is None


SDK = {
    "AnthropicError": ProviderGarbled,
    "APIError": ProviderGarbled,
    "APIResponseValidationError": ProviderGarbled,
    "APIWebhookValidationError": ProviderGarbled,
    "RetryableError": ProviderGarbled,
    "WorkloadIdentityError": ProviderGarbled,
    "CredentialsError": ProviderRejected,
    "IdentityTokenFileError": ProviderRejected,
    "APIConnectionError": ProviderBusy,
    "APITimeoutError": ProviderTimeout,
    "RequestTimeoutError": ProviderTimeout,
    "APIStatusError": ProviderRejected,
    "AuthenticationError": ProviderRejected,
    "BadRequestError": ProviderRejected,
    "CMEKKeyDisabledError": ProviderRejected,
    "CMEKKeyNetworkBlockedError": ProviderRejected,
    "ClaudeCodeKeyCreatorNotMemberError": ProviderRejected,
    "ClaudeCodeVersionTooOldError": ProviderRejected,
    "ClientClosedRequestError": ProviderRejected,
    "ConflictError": ProviderRejected,
    "ContentTooLargeError": ProviderRejected,
    "NotFoundError": ProviderRejected,
    "OrganizationOnHoldError": ProviderRejected,
    "OrganizationTypeNotSupportedError": ProviderRejected,
    "PermissionDeniedError": ProviderRejected,
    "PreconditionFailedError": ProviderRejected,
    "RequestBodyEncodingInvalidError": ProviderRejected,
    "RequestBodyEncodingUnsupportedError": ProviderRejected,
    "RequestBodyTooLargeAfterDecodingError": ProviderRejected,
    "RequestHeaderFieldsTooLargeError": ProviderRejected,
    "SandboxEgressRestrictedError": ProviderRejected,
    "UnprocessableEntityError": ProviderRejected,
    "CMEKContextUnavailableError": ProviderBusy,
    "CMEKKeyUnreachableError": ProviderBusy,
    "EnforcedSpendLimitReachedError": ProviderBusy,
    "GatewayTimeoutError": ProviderBusy,
    "HTTPNotImplementedError": ProviderBusy,
    "InternalServerError": ProviderBusy,
    "OverloadedError": ProviderBusy,
    "RampLimitExceededError": ProviderBusy,
    "RateLimitError": ProviderBusy,
    "ServiceUnavailableError": ProviderBusy,
}
HTTPX = {
    **dict.fromkeys(
        ("TimeoutException", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"), ProviderTimeout
    ),
    **dict.fromkeys(("ConnectError", "ProxyError"), ProviderBusy),
    **dict.fromkeys(("LocalProtocolError", "UnsupportedProtocol", "InvalidURL"), ProviderRejected),
    **dict.fromkeys(
        (
            "HTTPError",
            "RequestError",
            "TransportError",
            "NetworkError",
            "ReadError",
            "WriteError",
            "CloseError",
            "ProtocolError",
            "RemoteProtocolError",
            "DecodingError",
            "TooManyRedirects",
            "HTTPStatusError",
            "CookieConflict",
            "SSEError",
            "StreamError",
            "StreamConsumed",
            "StreamClosed",
            "ResponseNotRead",
            "RequestNotRead",
        ),
        ProviderGarbled,
    ),
}


def below(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def exceptions_of(library: Any) -> set[type[Exception]]:
    """All that it shows, and all that it keeps below them."""
    shown = [value for value in vars(library).values() if inspect.isclass(value)]
    found = {kind for value in shown if issubclass(value, Exception) for kind in (value, *below(value))}
    return {c for c in found if c.__module__.startswith(library.__name__) and not issubclass(c, Warning)}


def status_of(kind: type) -> int:
    return getattr(kind, "status_code", 500 if issubclass(kind, anthropic.InternalServerError) else 418)


def built(kind: type[Exception]) -> Exception:
    """An instance, whatever its constructor wants."""
    known = {
        "message": "m",
        "request": REQUEST,
        "response": httpx2.Response(status_of(kind), request=REQUEST),
        "body": None,
    }
    if kind.__init__ is Exception.__init__:
        return kind("m")
    _, *wanted = inspect.signature(kind.__init__).parameters.values()
    needed = [
        p.name for p in wanted if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return kind(**dict.fromkeys(needed, "m") | {p.name: known[p.name] for p in wanted if p.name in known})


def class_of_status(status: int) -> type:
    if status == 408:
        return ProviderTimeout
    return ProviderBusy if status == 429 or status >= 500 else ProviderRejected


def class_of(kind: type, known: dict[str, type]) -> type:
    """By its name; one that a later release adds, by its status or its nearest base that is known."""
    if kind.__name__ not in known and issubclass(kind, anthropic.APIStatusError):
        return class_of_status(status_of(kind))
    return next((known[base.__name__] for base in kind.__mro__ if base.__name__ in known), ProviderGarbled)


@pytest.mark.parametrize(
    ("library", "known"), [(anthropic, SDK), (httpx2, HTTPX)], ids=["anthropic", "httpx2"]
)
def test_every_foreign_exception_has_its_own_of_ours(library: Any, known: dict[str, type]) -> None:
    kinds = exceptions_of(library)
    assert len(known.keys() & {kind.__name__ for kind in kinds}) > len(known) / 2  # it looked where they are
    assert {kind: type(translate_error(built(kind), None)) for kind in kinds} == {
        kind: class_of(kind, known) for kind in kinds
    }


def test_error_classes_of_a_status_follow_the_status() -> None:
    kinds = [kind for kind in below(anthropic.APIStatusError) if kind is not anthropic.InternalServerError]
    assert {anthropic.BadRequestError, anthropic.RateLimitError} <= set(kinds)
    for kind in kinds:
        assert type(translate_error(built(kind), None)) is class_of_status(status_of(kind))


@pytest.mark.parametrize(
    ("base", "status", "expected"),
    [
        (anthropic.AnthropicError, None, ProviderGarbled),
        (anthropic.CredentialsError, None, ProviderRejected),
        (anthropic.APIConnectionError, None, ProviderBusy),
        (anthropic.APITimeoutError, None, ProviderTimeout),
        (anthropic.APIStatusError, 451, ProviderRejected),
        (anthropic.APIStatusError, 408, ProviderTimeout),
        (anthropic.APIStatusError, 598, ProviderBusy),
        (anthropic.BadRequestError, None, ProviderRejected),
        (anthropic.RateLimitError, None, ProviderBusy),
        (anthropic.InternalServerError, None, ProviderBusy),
        (httpx2.HTTPError, None, ProviderGarbled),
        (httpx2.InvalidURL, None, ProviderRejected),
        (httpx2.ConnectError, None, ProviderBusy),
        (httpx2.ReadTimeout, None, ProviderTimeout),
    ],
)
def test_an_exception_of_a_later_release_counts_as_what_it_is_a_kind_of(
    base: type[Exception], status: int | None, expected: type
) -> None:
    own = {} if status is None else {"status_code": status}
    tomorrows = type("OfTomorrow", (base,), own)
    for kind in (tomorrows, type("OfNextYear", (tomorrows,), {})):
        assert type(translate_error(built(kind), None)) is expected
        assert class_of(kind, {**SDK, **HTTPX}) is expected  # and no other is asked for above


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (TimeoutError(), ProviderTimeout),
        (json.JSONDecodeError("bad", "doc", 0), ProviderGarbled),
        (KeyError("type"), ProviderGarbled),
        (RecursionError(), ProviderGarbled),
        (ExceptionGroup("several", [ValueError()]), ProviderGarbled),
        (OSError(28, "No space left on device"), ProviderGarbled),
        (type("Unheard", (Exception,), {})(), ProviderGarbled),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_any_other_exception_is_ours_too(exc: Exception, expected: type) -> None:
    assert type(translate_error(exc, None)) is expected


@pytest.mark.parametrize(
    ("cause", "expected", "calls"),
    [
        (httpx2.ConnectError("refused"), ProviderBusy, 0),
        (httpx2.RemoteProtocolError("no response"), ProviderBusy, 1),
        (httpx2.LocalProtocolError("bad header"), ProviderRejected, 0),
        (httpx2.UnsupportedProtocol("no scheme"), ProviderRejected, 0),
    ],
)
def test_what_stopped_a_connection_decides(cause: Exception, expected: type, calls: int) -> None:
    exc = anthropic.APIConnectionError(request=REQUEST)
    exc.__cause__ = cause
    error = translate_error(exc, None)
    assert (type(error), error.usage) == (expected, Usage(model_calls=calls))


@pytest.mark.parametrize(
    "script",
    [
        Script(status=401, message=f"invalid x-api-key {KEY}"),
        Script(status=500, message=KEY),
        Script(("x",), fault=f"error-event:{KEY}"),
        Script(("x",), fault="cut:300"),
    ],
    ids=["401", "500", "event", "cut"],
)
def test_the_key_is_in_no_message_and_no_log(
    ask: Any, api: MessagesApi, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api.respond_with(script)
    with pytest.raises(ProviderError) as caught:
        ask(call())
    logging.getLogger("outside").error("the turn failed", exc_info=caught.value)
    assert str(caught.value) in SENTENCES.values()
    assert any(
        r.levelno == logging.WARNING and r.name == "agentapp.agents.providers.anthropic.errors"
        for r in caplog.records
    )
    assert KEY not in caplog.text


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
    assert not parents.is_closed()
    assert api.connections == 2
    parents.close()


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


EVENTS = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "a"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "server_tool_use", "id": "s"}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"type": "of_the_future", "x": 1},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]


def test_blocks_that_are_not_for_us_do_not_disturb() -> None:
    answer = Assembler()
    fed = [answer.feed(json.dumps(event)) for event in EVENTS]
    assert fed == [Usage(3, 1, 1), "", "", "a", "b", "", "", None, Usage(3, 9, 1), None]
    answer.check_complete()
    assert answer.reply() == Reply("ab", (), Usage(3, 9, 1), "end_turn")


@pytest.mark.parametrize("length", range(len(EVENTS)))
def test_a_stream_that_ends_between_two_events_is_cut(length: int) -> None:
    answer = Assembler()
    for event in EVENTS[:length]:
        answer.feed(json.dumps(event))
    with pytest.raises(CutShort):
        answer.check_complete()


def test_an_end_without_a_reason_is_no_end() -> None:
    answer = Assembler()
    for event in EVENTS:
        if event["type"] != "message_delta":
            answer.feed(json.dumps(event))
    with pytest.raises(CutShort):
        answer.check_complete()


@pytest.mark.parametrize(
    "data",
    [
        "null",
        "[]",
        "{}",
        '{"type": "message_start"}',
        '{"type": "message_start", "message": {"usage": {"input_tokens": "many"}}}',
        '{"type": "content_block_start", "index": 0}',
        '{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}',
        '{"type": "message_delta", "delta": null}',
        '{"type": "error"}',
        "[" * 100_000,
    ],
)
def test_an_event_that_makes_no_sense_is_garbled(data: str) -> None:
    answer = Assembler()
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError, RecursionError)) as caught:
        answer.feed(data)
    assert type(answer.translate_error(caught.value, KEY)) is ProviderGarbled


def good(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]} | changes


def said(*messages: tuple[str, Any]) -> dict[str, Any]:
    return good(messages=[{"role": role, "content": content} for role, content in messages])


USE = [{"type": "tool_use", "id": "t", "name": "add", "input": {}}]
RESULT = [{"type": "tool_result", "tool_use_id": "t", "content": "2"}]


@pytest.mark.parametrize(
    ("request_json", "status"),
    [
        (good(), 200),
        (said(("user", "hi"), ("assistant", USE), ("user", RESULT)), 200),
        (good(messages=[]), 400),
        ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, 400),
        (good(model=""), 400),
        (good(tools=[{"name": "not a name", "input_schema": {}}]), 400),
        (said(("user", "")), 400),
        (said(("user", [])), 400),
        (said(("user", [{"type": "text", "text": ""}])), 400),
        (said(("assistant", "hi")), 400),
        (said(("system", "hi")), 400),
        (said(("user", RESULT)), 400),
        (said(("user", "hi"), ("assistant", USE)), 400),
        (said(("user", "hi"), ("assistant", USE), ("user", "and?")), 400),
        (said(("user", "hi"), ("assistant", [USE[0] | {"input": "x"}]), ("user", RESULT)), 400),
        ("no object", 400),
    ],
)
def test_the_local_api_refuses_what_the_real_one_refuses(
    api: MessagesApi, request_json: Any, status: int
) -> None:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    answer = httpx2.post(f"{api.url}/v1/messages", json=request_json, headers=headers, trust_env=False)
    assert answer.status_code == status
    assert answer.json().get("error", {}).get("type") == (None if status == 200 else "invalid_request_error")


def test_the_local_api_wants_a_key(api: MessagesApi) -> None:
    answer = httpx2.post(f"{api.url}/v1/messages", json=good(), trust_env=False)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_the_local_api_answers_without_streaming_too(api: MessagesApi) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        message = client.messages.create(**good(tools=[{"name": "add", "input_schema": {"type": "object"}}]))
        assert message.content[0].text == "You said: hi"
        assert api.tokens == Tokens(message.usage.input_tokens, message.usage.output_tokens)


def test_a_tool_directive_ends_with_the_tools_result(ask: Any, api: MessagesApi) -> None:
    text = 'Now [[tool:add {"a": [[1]]}]]'
    reply = reply_of(ask(call(text)))
    assert [c.input for c in reply.calls] == [{"a": [[1]]}]
    messages = (
        Message("user", (text,)),
        Message("assistant", (reply.text,), calls=reply.calls),
        Message("user", results=(ToolResult(reply.calls[0].id, "2"),)),
    )
    assert reply_of(ask(call(messages=messages))).text == "The tool said: 2"


def test_the_tokens_the_local_api_handed_out_are_those_the_callers_saw(ask: Any, api: MessagesApi) -> None:
    seen = Usage()
    for text in (
        "hello",
        "[[tool:add {}]]",
        "[[cut:600]] a",
        "[[end-early]] b",
        "[[status:500]]",
        "[[garbage]] c",
    ):
        try:
            seen += reply_of(ask(call(text))).usage
        except ProviderError as error:
            seen += error.usage
    assert api.wait_until(lambda api: api.in_progress == 0)
    assert seen == Usage(api.tokens.input, api.tokens.output, 6)


def test_closing_the_local_api_ends_a_hanging_call(ask: Any) -> None:
    with MessagesApi() as other:
        drive, provider = type(ask), type(ask.provider)
        driver, caught = drive(provider(KEY, other.url)), []

        def hang() -> None:
            with pytest.raises(ProviderError) as error:
                driver(call("[[hang:3600]]", timeout=3600))
            caught.append(error.value)

        thread = threading.Thread(target=hang)
        thread.start()
        assert other.wait_until(lambda api: api.in_progress == 1)
        start = time.monotonic()
        other.close()
        thread.join(5)
        assert time.monotonic() - start < 3
        driver.close()
    assert type(caught[0]) is ProviderBusy


def test_the_local_api_serves_five_hundred_at_once(api: MessagesApi) -> None:
    release = threading.Event()

    def wait(_: Any) -> Script:
        release.wait(60)
        return Script(("done",))

    api.respond_with(wait)
    body = json.dumps(good(stream=True))
    head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: x"
    sockets = [
        socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])), 30) for _ in range(500)
    ]
    try:
        for connection in sockets:
            connection.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert api.wait_until(lambda api: api.in_progress == 500, timeout=60)
        release.set()
        for connection in sockets:
            with connection.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
                assert any(line == b"event: message_stop\n" for line in answer)
    finally:
        release.set()
        for connection in sockets:
            connection.close()
    assert api.most_in_progress == 500
