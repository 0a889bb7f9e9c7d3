"""What a reader is shown of the way to an answer: who handed over to whom, and which tools were used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agentapp.events import Event, HandedOver, ToolCompleted, ToolExecuting


def steps_of(activity: Iterable[Event]) -> tuple[dict[str, Any], ...]:
    """One entry a hand-over or tool call, for the template. A tool that did not end before its turn did
    counts as failed.
    """
    steps: list[dict[str, Any]] = []
    called: dict[str, dict[str, Any]] = {}
    for event in activity:
        match event:
            case HandedOver():
                steps.append({"kind": event.kind, "from": event.from_, "to": event.to, "task": event.task})
            case ToolExecuting():
                called[event.call_id] = step = _tool_step(event)
                steps.append(step)
            case ToolCompleted() if event.call_id in called:
                step = called[event.call_id]
                step |= {"output": event.output, "failed": event.failed, "limited": event.limited}
    return tuple(steps)


def _tool_step(event: ToolExecuting) -> dict[str, Any]:
    given = event.input
    return {
        "kind": "tool",
        "name": event.name,
        "input": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
        "output": "",
        "failed": True,
        "limited": False,
    }
