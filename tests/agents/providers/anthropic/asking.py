"""Asking the provider, sync and async alike."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from typing import Any

from agentapp.agents.provider import Message, ModelCall, Reply, ToolSpec
from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.events import Usage

KEY = "sk-ant-api03-not-a-real-key"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})


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


def call(text: str = "hello", **changes: Any) -> ModelCall:
    values = {"model": "claude-test", "system": "Be brief.", "messages": (Message("user", (text,)),)}
    return ModelCall(**values | {"timeout": 10.0} | changes)


def reply_of(items: list[Any]) -> Reply:
    *pieces, reply = without_usage(items)
    assert isinstance(reply, Reply)
    assert "".join(pieces) == reply.text
    return reply


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


def good(**changes: Any) -> dict[str, Any]:
    """The JSON of a request that the API accepts."""
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]} | changes
