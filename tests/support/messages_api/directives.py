"""The default script of a request: its own text says what to answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.support.messages_api.scripts import Script
from tests.support.messages_api.validation import content_of


def respond_as_told(request: Any) -> Script:
    """The default: tool results are repeated, texts are echoed, directives in them are obeyed."""
    blocks = content_of(request["messages"][-1])
    if results := [_text_of(block) for block in blocks if block["type"] == "tool_result"]:
        return Script(pieces=_words("The tool said: " + "; ".join(results)))
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    plain, tools = _without_tools(text)
    script = Script(tools=tools)
    for name, argument in DIRECTIVE.findall(plain):
        script = _obeyed(script, name, argument)
    said = DIRECTIVE.sub("", plain).strip()
    return replace(script, pieces=_words(f"You said: {said}")) if said or not tools else script


DIRECTIVE = re.compile(r"\[\[([a-z-]+)(?::([^\]]*))?\]\]")
TOOL = re.compile(r"\[\[tool:([\w-]+)\s*")


def _obeyed(script: Script, name: str, argument: str) -> Script:
    match name:
        case "status":
            return replace(script, status=int(argument))
        case "retry-after":
            return replace(script, retry_after=argument)
        case "hang":
            return replace(script, delay=float(argument or 3600))
        case "slow":
            return replace(script, pause=float(argument))
        case "writes":
            return replace(
                script, tools=(*script.tools, ("add_note", '{"text": "' + "x" * 20 * int(argument)))
            )
        case "stop":
            return replace(script, stop_reason=argument)
        case "cut" | "reset" | "mute" | "stall" | "end-early" | "garbage" | "error-event" | "no-usage":
            return replace(script, fault=f"{name}:{argument}")
    return script


def _without_tools(text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """JSON may hold brackets of its own, so a pattern alone cannot find where a tool directive ends."""
    plain, tools, at = "", [], 0
    while found := TOOL.search(text, at):
        sent, end = {}, found.end()
        if not text.startswith("]]", end):
            sent, end = json.JSONDecoder().raw_decode(text, end)
        tools.append((found[1], sent))
        plain, at = plain + text[at : found.start()], text.index("]]", end) + 2
    return plain + text[at:], tuple(tools)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+\s*", text))


def _text_of(result: Mapping[str, Any]) -> str:
    content = result.get("content", "")
    return content if isinstance(content, str) else " ".join(block.get("text", "") for block in content)
