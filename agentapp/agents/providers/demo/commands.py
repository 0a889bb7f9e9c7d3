"""The slash commands of the demo model: everything an agent can do, on demand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from agentapp.agents.provider import ToolSpec
from agentapp.agents.providers.demo.matching import listed_specialists
from agentapp.agents.providers.demo.turn import Decision, Turn, hand_back, hand_over
from agentapp.errors import ProviderFailed

MAX_SLOW_SECONDS = 300.0
MAX_LONG_WORDS = 5_000

HELP = """These work with the offline demo model:

- a sum ("what is 17*23?"), a time ("what time is it in Tokyo?", "days between 2026-01-01 and 2026-03-01"),
  a note ("remember to call Ada", "my notes", "search my chats for Ada"), or "what did I say?"
- `/call TOOL {json}` calls any tool the agent has
- `/handover NAME {json}` hands over to a specialist with these parameters; `/handback` hands back
- `/fail` fails at once; `/fail later` fails after some words
- `/slow SECONDS` waits before the first word; `/long WORDS` answers at length
- `/loop` calls a tool for ever
- `/markdown` shows every kind of formatting"""
MARKDOWN = """# A heading

Some **bold**, some *slanted* and some `fixed` text, with [a link](https://example.com/).

## A list and a table

- first
- second
  1. nested

| fruit | pieces |
|---|---:|
| apples | 3 |
| pears | 12 |

> A quotation.

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"
```
"""


def _help(turn: Turn, rest: str) -> Decision:
    return Decision(HELP)


def _markdown(turn: Turn, rest: str) -> Decision:
    return Decision(MARKDOWN)


def _fail(turn: Turn, rest: str) -> Decision:
    if rest == "later":
        cut = "This answer will be cut off before it comes to its end, because you asked for that."
        return Decision(cut, fails_midway=True)
    raise ProviderFailed("The demo model was told to fail.")


def _slow(turn: Turn, rest: str) -> Decision:
    seconds = min(float(rest), MAX_SLOW_SECONDS) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", rest) else 0.0
    return Decision(f"Here I am, after {seconds:g} seconds.", wait=seconds)


def _long(turn: Turn, rest: str) -> Decision:
    count = min(int(rest), MAX_LONG_WORDS) if re.fullmatch("[0-9]{1,9}", rest) else 200
    return Decision(" ".join(map(str, range(1, count + 1))))


def _call(turn: Turn, rest: str) -> Decision | None:
    if turn.calls or turn.notes:
        return None
    name, _, source = rest.partition(" ")
    if name not in turn.offered:
        offered = ", ".join(turn.offered) or "none"
        return Decision(f"The tool {name!r} is not offered to me here. Offered are: {offered}.")
    return _with_json(source, lambda value: Decision(calls=((name, value),)))


def _handover(turn: Turn, rest: str) -> Decision | None:
    name, _, source = rest.partition(" ")
    if any(made.name == "hand_over" for made in turn.calls) or turn.handed_over:
        return None
    if "hand_over" in turn.offered:
        task = "The person asked for you with /handover."
        return _with_json(source, lambda parameters: hand_over(name, task, parameters))
    if "hand_back" in turn.offered:
        return hand_back(f"The person asks for {name}.")
    return Decision("There is nobody here to hand over to.")


def _handback(turn: Turn, rest: str) -> Decision | None:
    if turn.notes:
        return None
    if "hand_back" in turn.offered:
        return hand_back(rest or "The person asked for you with /handback.")
    return Decision("I am the front agent: there is nobody to hand back to.")


def _loop(turn: Turn, rest: str) -> Decision:
    if turn.own_tools:
        spec = turn.own_tools[0]
        return Decision(calls=((spec.name, _sample(spec)),))
    if "hand_over" in turn.offered:
        name = next(iter(listed_specialists(turn.offered["hand_over"])), "")
        return hand_over(name, "Call a tool for ever.")
    if "hand_back" in turn.offered:
        return hand_back("I have no tool to call.")
    return Decision("I have no tool to call for ever.")


def _sample(spec: ToolSpec) -> dict[str, Any]:
    samples = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
    schemas = spec.input_schema.get("properties", {})
    required = spec.input_schema.get("required", ())
    return {name: samples.get(schemas.get(name, {}).get("type"), "1") for name in required}


def _with_json(source: str, then: Callable[[Any], Decision]) -> Decision:
    try:
        return then(json.loads(source) if source.strip() else {})
    except (ValueError, RecursionError):
        return Decision(f"That is not valid JSON: {source}")


COMMANDS: Mapping[str, Callable[[Turn, str], Decision | None]] = MappingProxyType(
    {
        "/help": _help,
        "/markdown": _markdown,
        "/fail": _fail,
        "/slow": _slow,
        "/long": _long,
        "/call": _call,
        "/handover": _handover,
        "/handback": _handback,
        "/loop": _loop,
    }
)
