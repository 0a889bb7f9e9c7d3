"""What people, models and tools said, in the form in which traces carry it if they are to: JSON, as the
conventions for GenAI describe it, and cut to a length that many turns at once can afford.
"""

from __future__ import annotations

import json
from typing import Any

from agentapp.agents.provider import Message, ModelCall, Reply

MAX_TEXT_CHARS = 4_000  # of one text; whatever is longer is cut
MAX_MESSAGES = 20  # of one call, the newest


def system_instructions(call: ModelCall) -> str:
    return _json([_text(call.system)])


def input_messages(call: ModelCall) -> str:
    return _json([_message(message) for message in call.messages[-MAX_MESSAGES:]])


def output_messages(reply: Reply) -> str:
    said = Message("assistant", (reply.text,) if reply.text else (), reply.calls)
    return _json([{**_message(said), "finish_reason": reply.stop_reason}])


def kept_text(value: object) -> str:
    """A text as it is, anything else as JSON."""
    return (value if isinstance(value, str) else _json(value))[:MAX_TEXT_CHARS]


def _message(message: Message) -> dict[str, Any]:
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": kept_text(call.input)}
        for call in message.calls
    ]
    results = [
        {"type": "tool_call_response", "id": result.call_id, "response": kept_text(result.content)}
        for result in message.results
    ]
    return {"role": message.role, "parts": [*map(_text, message.texts), *calls, *results]}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "content": text[:MAX_TEXT_CHARS]}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
