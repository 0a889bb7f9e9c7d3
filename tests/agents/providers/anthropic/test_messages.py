"""Putting an answer together from its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentapp.agents.meter import Meter
from agentapp.agents.provider import Message, Reply, ToolCall, ToolResult
from agentapp.agents.providers.anthropic.errors import CutShort
from agentapp.agents.providers.anthropic.messages import Assembler, request_for
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import ADD, EVENTS, KEY, call, reply_of
from tests.support.messages_api import MessagesApi

MARK = {"cache_control": {"type": "ephemeral"}}


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
        "system": [{"type": "text", "text": "Be brief.", **MARK}],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": dict(ADD.input_schema)}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "add", **MARK}]},
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
                    {"type": "text", "text": "and?", **MARK},
                ],
            },
        ],
    }


def test_a_blank_system_and_no_tools_are_not_sent() -> None:
    assert not {"system", "tools"} & request_for(call(system=" ")).keys()


def test_connecting_may_take_five_seconds_at_most() -> None:
    timeouts = [request_for(call(timeout=seconds))["timeout"] for seconds in (60, 0.3)]
    assert [(t.connect, t.read, t.write, t.pool) for t in timeouts] == [(5, 60, 60, 60), (0.3, 0.3, 0.3, 0.3)]


def test_blocks_that_are_not_for_us_do_not_disturb() -> None:
    answer = Assembler(Meter())
    fed = [answer.feed(json.dumps(event)) for event in EVENTS]
    assert fed == [Usage(3, 1, 1), "", "", "a", "b", "", "", None, Usage(3, 9, 1), None]
    answer.check_complete()
    assert answer.reply() == Reply("ab", (), Usage(3, 9, 1), "end_turn")


@pytest.mark.parametrize("length", range(len(EVENTS)))
def test_a_stream_that_ends_between_two_events_is_cut(length: int) -> None:
    answer = Assembler(Meter())
    for event in EVENTS[:length]:
        answer.feed(json.dumps(event))
    with pytest.raises(CutShort):
        answer.check_complete()


def test_an_end_without_a_reason_is_no_end() -> None:
    answer = Assembler(Meter())
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
    answer = Assembler(Meter())
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError, RecursionError)) as caught:
        answer.feed(data)
    assert type(answer.translate_error(caught.value, KEY)) is ProviderGarbled
