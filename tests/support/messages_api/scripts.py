"""What the server can be told to answer, and what its answers cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.messages_api.validation import content_of


@dataclass(frozen=True, slots=True)
class Script:
    """How to answer one request. A tool is (name, input); an input that is a string goes out as it is."""

    pieces: tuple[str, ...] = ()
    tools: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    message: str = "scripted"
    retry_after: str | float | None = None
    location: str = ""
    fault: str = ""  # a directive that is a fault, such as "cut:120"
    delay: float = 0.0
    pause: float = 0.0
    stop_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the calls have cost: the input from the moment a request was received, the output as far as it was
    sent. Input includes the cached.
    """

    input: int = 0
    output: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.input + other.input, self.output + other.output)


NO_TOKENS = Tokens()


def count_tokens(text: str) -> int:
    return -(-len(text.encode()) // 4)


def received(request: Any) -> str:
    """All texts of a request."""
    texts = [request.get("system") or ""]
    for message in request["messages"]:
        for block in content_of(message):
            match block["type"]:
                case "text":
                    texts.append(block["text"])
                case "tool_use":
                    texts.append(f"{block['name']} {block['input']}")
                case "tool_result":
                    texts.append(block["content"])
    for tool in request.get("tools") or ():
        texts += [tool["name"], " ", tool.get("description", ""), " ", json.dumps(tool["input_schema"])]
    return "".join(texts)


def usage_of(script: Script, request: Any) -> dict[str, int]:
    asked = script.input_tokens
    return {
        "input_tokens": count_tokens(received(request)) if asked is None else asked,
        "cache_read_input_tokens": script.cache_read_tokens,
        "cache_creation_input_tokens": script.cache_creation_tokens,
        "output_tokens": output_tokens(script),
    }


def output_tokens(script: Script) -> int:
    said = "".join(script.pieces) + "".join(f"{name}{sent}" for name, sent in script.tools)
    return max(1, count_tokens(said)) if script.output_tokens is None else script.output_tokens


def input_tokens(usage: Mapping[str, int]) -> int:
    return sum(count for name, count in usage.items() if name != "output_tokens")


def stop_reason(script: Script) -> str:
    return script.stop_reason or ("tool_use" if script.tools else "end_turn")
