"""What the page shows besides the answer: which agent handed over to which, and which tools were used."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agentapp.events import Event, HandedOver, ToolCompleted, ToolExecuting

Step = dict[str, object]


def steps_of(activity: Iterable[Event]) -> tuple[Step, ...]:
    """One entry for each hand-over or tool call, for the template.

    A tool counts as failed if it had not ended when its turn did.
    """
    steps: list[Step] = []
    tool_steps: dict[str, Step] = {}  # by the id of the call
    for event in activity:
        match event:
            case HandedOver():
                steps.append({"kind": event.kind, "from": event.from_, "to": event.to, "task": event.task})
            case ToolExecuting():
                tool_steps[event.call_id] = step = _tool_step(event)
                steps.append(step)
            case ToolCompleted() if event.call_id in tool_steps:
                tool_steps[event.call_id] |= {
                    "output": event.output,
                    "failed": event.failed,
                    "limited": event.limited,
                }
    return tuple(steps)


def _tool_step(event: ToolExecuting) -> Step:
    given = event.input
    return {
        "kind": "tool",
        "name": event.name,
        "input": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
        "output": "",
        "failed": True,
        "limited": False,
    }
