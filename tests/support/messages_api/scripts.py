"""What the server can be told to answer, and what its answers cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.messages_api.validation import content_of, system_blocks


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
    sent. Input includes what was read from the cache and written to it.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_written + other.cache_written,
        )


NO_TOKENS = Tokens()


def count_tokens(text: str) -> int:
    return tokens_in(len(text.encode()))


def tokens_in(size: int) -> int:
    return -(-size // 4)


def size_of_block(block: Mapping[str, Any]) -> int:
    """Bytes of the text in a block of a message or of the system prompt, or in a tool."""
    match block.get("type"):
        case "text":
            text = block["text"]
        case "tool_use":
            text = f"{block['name']} {block['input']}"
        case "tool_result":
            text = block["content"]
        case _:
            text = f"{block['name']} {block.get('description', '')} {json.dumps(block['input_schema'])}"
    return len(text.encode())


def received_tokens(request: Any) -> int:
    said = (block for message in request["messages"] for block in content_of(message))
    return tokens_in(sum(map(size_of_block, (*(request.get("tools") or ()), *system_blocks(request), *said))))


def usage_of(script: Script, request: Any) -> dict[str, int]:
    asked = script.input_tokens
    return {
        "input_tokens": received_tokens(request) if asked is None else asked,
        "cache_read_input_tokens": script.cache_read_tokens,
        "cache_creation_input_tokens": script.cache_creation_tokens,
        "output_tokens": output_tokens(script),
    }


def output_tokens(script: Script) -> int:
    said = "".join(script.pieces) + "".join(f"{name}{sent}" for name, sent in script.tools)
    return max(1, count_tokens(said)) if script.output_tokens is None else script.output_tokens


def input_of(usage: Mapping[str, int]) -> Tokens:
    read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return Tokens(usage["input_tokens"] + read + written, 0, read, written)


def stop_reason(script: Script) -> str:
    return script.stop_reason or ("tool_use" if script.tools else "end_turn")
