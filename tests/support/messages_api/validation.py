"""What the real API refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

MAX_MARKS = 4


class Invalid(Exception):
    """A request that the real API refuses."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def validate(path: str, headers: Mapping[str, str], request: Any) -> None:
    """Refuses what the real API refuses, as far as a client of ours could get it wrong."""
    # Either is taken; which of the two the SDK sends for an api_key depends on its version.
    if not headers.get("x-api-key") and not headers.get("authorization", "").startswith("Bearer "):
        raise Invalid("x-api-key header is required", 401)
    if urlsplit(path).path != "/v1/messages":  # whoever takes this server for a proxy sends the whole URL
        raise Invalid("Not found", 404)
    if not headers.get("anthropic-version"):
        raise Invalid("anthropic-version: header is required")
    if not isinstance(request, dict):
        raise Invalid("The request body is not valid JSON")
    for field in ("model", "max_tokens", "messages"):
        if not request.get(field):
            raise Invalid(f"{field}: Field required")
    if "system" in request and not all(
        block["text"].strip() for block in system_blocks(request) or ({"text": ""},)
    ):
        raise Invalid("system: text content blocks must be non-empty")
    names = [tool["name"] for tool in request.get("tools", ())]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name) for name in names):
        raise Invalid("tools: names must be unique and match '^[a-zA-Z0-9_-]{1,128}$'")
    _validate_messages(request["messages"])
    _validate_marks(request)


def _validate_messages(messages: list[dict[str, Any]]) -> None:
    if messages[0].get("role") != "user":
        raise Invalid("messages: first message must use the user role")
    open_calls: set[str] = set()
    for place, message in enumerate(merged_messages(messages)):
        where = f"messages.{place}"
        if message["role"] not in ("user", "assistant"):
            raise Invalid(f"{where}: role must be user or assistant")
        for block in message["content"]:
            _validate_block(f"{where}.content", block, open_calls)
        results = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if missing := open_calls - results:
            raise Invalid(f"{where}: `tool_use` ids without `tool_result` blocks after: {sorted(missing)}")
        open_calls = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    if open_calls:
        raise Invalid("messages: `tool_use` ids were found without `tool_result` blocks immediately after")


def _validate_marks(request: Mapping[str, Any]) -> None:
    said = (block for message in request["messages"] for block in content_of(message))
    blocks = (*request.get("tools", ()), *system_blocks(request), *said)
    marks = [block["cache_control"] for block in blocks if "cache_control" in block]
    if len(marks) > MAX_MARKS:
        found = f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
        raise Invalid(found)
    if any(mark != {"type": "ephemeral"} for mark in marks):
        raise Invalid("cache_control: only {'type': 'ephemeral'} is known here")


def _validate_block(where: str, block: Mapping[str, Any], open_calls: set[str]) -> None:
    match block["type"]:
        case "text" if not block["text"].strip():
            raise Invalid(f"{where}: text content blocks must contain non-whitespace text")
        case "tool_result" if block["tool_use_id"] not in open_calls:
            raise Invalid(f"{where}: unexpected `tool_use_id` found in `tool_result` blocks")
        case "tool_use" if not isinstance(block["input"], dict):
            raise Invalid(f"{where}.tool_use.input: Input should be a valid dictionary")


def merged_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The API takes messages of one role in a row for one message."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if not message.get("content"):
            raise Invalid("messages: all messages must have non-empty content")
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += content_of(message)
        else:
            merged.append({"role": message.get("role"), "content": content_of(message)})
    return merged


def system_blocks(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    system = request.get("system") or []
    return [{"type": "text", "text": system}] if isinstance(system, str) else list(system)


def content_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
