"""An answer in the format of the Messages API: its events, or the whole message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.support.messages_api.scripts import (
    NO_TOKENS,
    Script,
    Tokens,
    count_tokens,
    stop_reason,
    usage_of,
)

LONG_INPUT = 400  # characters of a tool's input; more are streamed piece by piece, as words are


@dataclass(frozen=True, slots=True)
class Event:
    data: bytes
    tokens: Tokens = NO_TOKENS
    is_piece: bool = False


def events_of(script: Script, request: Any, number: int) -> Iterator[Event]:
    """The server-sent events of the answer, in the order of the real API, with the script's fault in them."""
    fault, _, argument = script.fault.partition(":")
    start = message_of(replace(script, pieces=(), tools=()), request, number)
    start |= {"stop_reason": None, "usage": start["usage"] | {"output_tokens": 1}}
    yield _event("message_start", {"message": start}, Tokens(output=1))
    said, sent = "", 1
    for index, block in enumerate(_blocks(script)):
        for event, piece in _block_events(index, block):
            said += piece
            yield replace(event, tokens=Tokens(output=max(0, count_tokens(said) - sent)))
            sent = max(sent, count_tokens(said))
    if fault in ("end-early", "garbage", "error-event"):
        yield from _last_event(fault, argument)
        return
    usage = usage_of(script, request)
    delta: dict[str, Any] = {"delta": {"stop_reason": stop_reason(script), "stop_sequence": None}}
    if fault != "no-usage":
        delta["usage"] = usage
    yield _event("message_delta", delta, Tokens(output=usage["output_tokens"] - sent))
    yield _event("message_stop", {})


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[tuple[Event, str]]:
    """Each with the text in it."""
    empty = {"text": ""} if block["type"] == "text" else {"input": {}}
    shown = {name: value for name, value in block.items() if name != "pieces"}
    yield _event("content_block_start", {"index": index, "content_block": shown | empty}), ""
    if index == 0:
        yield _event("ping", {}), ""
    kind, name = ("text_delta", "text") if block["type"] == "text" else ("input_json_delta", "partial_json")
    for piece in block["pieces"]:
        delta = {"index": index, "delta": {"type": kind, name: piece}}
        is_piece = kind == "text_delta" or len(block["pieces"]) > len(_halves(""))
        yield replace(_event("content_block_delta", delta), is_piece=is_piece), piece
    yield _event("content_block_stop", {"index": index}), ""


def _last_event(fault: str, argument: str) -> Iterator[Event]:
    if fault == "garbage":
        yield Event(b'event: content_block_delta\ndata: {"type": "content_bl\xff{{{\n\n')
    if fault == "error-event":
        yield _event("error", {"error": {"type": argument, "message": "scripted"}})


def _event(kind: str, data: Mapping[str, Any], tokens: Tokens = NO_TOKENS) -> Event:
    # Characters go out as they are, as from the real API, so that a cut may fall into the middle of one.
    shown = json.dumps({"type": kind, **data}, ensure_ascii=False)
    return Event(f"event: {kind}\ndata: {shown}\n\n".encode(), tokens)


def _blocks(script: Script) -> list[dict[str, Any]]:
    """Content blocks with the pieces in which they are streamed."""
    blocks: list[dict[str, Any]] = [{"type": "text", "pieces": script.pieces}] if script.pieces else []
    for place, (name, sent) in enumerate(script.tools):
        raw = sent if isinstance(sent, str) else json.dumps(sent)
        pieces = _halves(raw) if len(raw) <= LONG_INPUT else tuple(re.findall(".{1,20}", raw))
        blocks.append({"type": "tool_use", "id": f"toolu_{place:02d}", "name": name, "pieces": pieces})
    return blocks


def _halves(raw: str) -> tuple[str, ...]:
    return "", raw[: len(raw) // 2], raw[len(raw) // 2 :]


def message_of(script: Script, request: Any, number: int) -> dict[str, Any]:
    """The whole answer, as the API gives it when it is not asked to stream."""
    content: list[dict[str, Any]] = []
    if script.pieces:
        content.append({"type": "text", "text": "".join(script.pieces)})
    for place, (name, sent) in enumerate(script.tools):
        content.append({"type": "tool_use", "id": f"toolu_{place:02d}", "name": name, "input": sent})
    return {
        "id": f"msg_{number:06d}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": stop_reason(script),
        "stop_sequence": None,
        "usage": usage_of(script, request),
    }
