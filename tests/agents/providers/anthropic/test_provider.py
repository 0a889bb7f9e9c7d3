"""The provider with the real SDK against a local Messages API; every claim holds for both kinds."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.agents.meter import Meter
from agentapp.agents.provider import Reply
from agentapp.errors import ProviderError
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import ADD, call, reply_of
from tests.support.messages_api import MessagesApi, Script


def test_the_reply_is_all_of_the_pieces(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("Hel", "lo, ", "wörld 🌍"), input_tokens=11, output_tokens=5))
    items = ask(call())
    assert reply_of(items) == Reply("Hello, wörld 🌍", (), Usage(11, 5, 1), "end_turn")


def test_what_it_has_cost_so_far_is_told_as_soon_as_it_is_known(ask: Any, api: MessagesApi) -> None:
    """The input before anything else, for the case that nobody waits for the end."""
    api.respond_with(Script(("a", "b"), input_tokens=11, output_tokens=5))
    first, *_, last, reply = ask.all(call())
    assert (first, last, reply.usage) == (Usage(11, 1, 1), Usage(11, 5, 1), Usage(11, 5, 1))


def test_an_answer_without_a_final_count_costs_what_was_heard_of_it(ask: Any, api: MessagesApi) -> None:
    """As a gateway sends it. The count of the beginning is no final word."""
    api.respond_with(Script(("word " * 400,), tools=(("add", {"a": 1}),), input_tokens=11, fault="no-usage"))
    items = ask(call())
    heard = 400 * 5 + len('{"a": 1}')
    assert reply_of(items).usage == Usage(11, -(-heard // 4), 1)


@pytest.mark.parametrize("says", [0, 1, 9_999])
def test_a_final_count_is_the_truth_whatever_it_is(ask: Any, api: MessagesApi, says: int) -> None:
    api.respond_with(Script(("word " * 400,), input_tokens=11, output_tokens=says))
    assert reply_of(ask(call())).usage == Usage(11, says, 1)


@pytest.mark.parametrize("fault", ["no-usage", "end-early"])
def test_an_input_that_nobody_counted_costs_what_was_estimated(
    ask: Any, api: MessagesApi, fault: str
) -> None:
    api.respond_with(Script(("word",), input_tokens=0, fault=fault))
    asked = call(meter=Meter(70))
    try:
        usage = reply_of(ask(asked)).usage
    except ProviderError as error:
        usage = error.usage or Usage()
    assert usage == Usage(70, 1, 1)


def test_only_content_is_progress(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("a", "b")))
    # (message_start) content_block_start (ping) a, b, content_block_stop (message_delta, message_stop)
    assert "".join(ask(call())[:-1]) == "ab"


def test_an_answer_without_content_shows_no_progress(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(stop_reason="refusal"))
    assert [type(item) for item in ask(call())] == [Reply]


def test_a_tools_input_is_progress_that_shows_nothing(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(tools=(("add", {"a": 1}),)))
    # content_block_start (ping) three pieces of input, content_block_stop
    assert set(ask(call())[:-1]) == {""}


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


def test_cached_tokens_are_input_tokens_and_are_counted_apart_too(ask: Any, api: MessagesApi) -> None:
    numbers = {"input_tokens": 10, "cache_read_tokens": 200, "cache_creation_tokens": 30, "output_tokens": 7}
    api.respond_with(Script(("x",), **numbers))
    assert reply_of(ask(call())).usage == Usage(240, 7, 1, 200, 30)


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "stop_sequence", "pause_turn", "of_the_future"])
def test_the_stop_reason_is_passed_on(ask: Any, api: MessagesApi, reason: str) -> None:
    api.respond_with(Script(("x",), stop_reason=reason))
    assert reply_of(ask(call())).stop_reason == reason


def test_an_answer_without_any_content_is_an_empty_reply(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(stop_reason="refusal", input_tokens=3, output_tokens=1))
    assert reply_of(ask(call())) == Reply("", (), Usage(3, 1, 1), "refusal")


def test_calls_one_after_the_other_share_a_connection(ask: Any, api: MessagesApi) -> None:
    for _ in range(3):
        reply_of(ask(call()))
    assert (len(api.requests), api.connections) == (3, 1)


def test_an_abandoned_answer_frees_its_connection_at_once(ask: Any, api: MessagesApi) -> None:
    api.respond_with([Script(("Hello ", "world"), fault="stall:60")])
    assert ask.abandon(call()) == "Hello "
    assert api.wait_until(lambda api: (api.in_progress, api.open_connections) == (0, 0))
    assert reply_of(ask(call("next"))).text == "You said: next"
