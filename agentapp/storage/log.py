"""The events of an ended turn, kept small: of a text only its length, for the messages hold the words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

Event = tuple[str, dict[str, Any]]  # kind, data


def packed(events: Iterable[Event]) -> list[Any]:
    return [_small(kind, data) for kind, data in events]


def unpacked(log: Sequence[Any], message: str, reply: str) -> list[Event]:
    """The events as they were, with the same numbers: the first is number 1."""
    events: list[Event] = []
    at = 0
    for entry in log:
        if isinstance(entry, int):
            events.append(("text", {"text": reply[at : at + entry]}))
            at += entry
        elif entry[0] == "turn_started":
            events.append(("turn_started", {**entry[1], "message": message}))
        else:
            events.append((entry[0], entry[1]))
    return events


def _small(kind: str, data: dict[str, Any]) -> Any:
    if kind == "text":
        return len(data["text"])
    if kind == "turn_started":
        return [kind, {name: value for name, value in data.items() if name != "message"}]
    return [kind, data]


def text_of(events: Iterable[Sequence[Any]]) -> str:
    return "".join(data["text"] for kind, data in events if kind == "text")


def agent_of(events: Iterable[Sequence[Any]]) -> str:
    """Who was answering last."""
    agents = [data["agent"] for kind, data in events if kind == "agent_started"]
    return agents[-1] if agents else ""


def steps_of(log: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """What a reader is shown of the way to an answer: who handed over to whom, and which tools were used.

    A tool that did not end before its turn did counts as failed.
    """
    steps: list[dict[str, Any]] = []
    called: dict[str, dict[str, Any]] = {}
    for entry in log:
        if isinstance(entry, int):
            continue
        kind, data = entry
        match kind:
            case "handed_over":
                steps.append({"kind": kind, **{name: data[name] for name in ("from", "to", "task")}})
            case "tool_executing":
                called[data["call_id"]] = step = _tool_step(data)
                steps.append(step)
            case "tool_completed" if data["call_id"] in called:
                step = called[data["call_id"]]
                step |= {name: data[name] for name in ("output", "failed", "limited")}
    return tuple(steps)


def _tool_step(data: dict[str, Any]) -> dict[str, Any]:
    given = data["input"]
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {
        "kind": "tool",
        "name": data["name"],
        "input": shown,
        "output": "",
        "failed": True,
        "limited": False,
    }
