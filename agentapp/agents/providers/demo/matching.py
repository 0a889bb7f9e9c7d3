"""Matching by shared words: which specialist a message is for, and which tool of others it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentapp.agents.provider import ToolSpec
from agentapp.agents.providers.demo.tasks import MAX_READ_CHARS, Task
from agentapp.agents.providers.demo.turn import Turn


def find_specialist(turn: Turn, tasks: tuple[Task, ...]) -> str | None:
    """The specialist to hand over to, by the kind of task or else by shared words; each only once a turn."""
    known = listed_specialists(turn.offered["hand_over"])
    tried = {str(made.input.get("to")) for made in turn.calls if isinstance(made.input, dict)}
    tried |= {name for note in turn.notes for name in re.findall(r"^\[Handed back by ([^\]]+)\]", note)}
    for kind in dict.fromkeys(task.kind for task in tasks):
        name = _best(known, _stems(_KINDS[kind]))
        if name and name not in tried:
            return name
    if tasks or tried or turn.has_used_tools:
        return None
    return _best(known, _stems(turn.words[:MAX_READ_CHARS]) - _stems(_SMALL_TALK))


def _best(known: Mapping[str, str], stems: frozenset[str]) -> str | None:
    scores = {
        name: 3 * len(stems & _stems(name)) + len(stems & _stems(description))
        for name, description in known.items()
    }
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best] else None


def listed_specialists(spec: ToolSpec) -> Mapping[str, str]:
    """Descriptions by name, as far as the text and schema of `hand_over` list them."""
    to = spec.input_schema.get("properties", {}).get("to", {})
    text = f"{spec.description}\n{to.get('description', '')}"
    listed = dict(re.findall(r"^\W*([A-Za-z][\w-]*)\W*:\s*(.+)$", text, re.M))
    names = to.get("enum") or list(listed)
    return {name: listed.get(name, "") for name in names if isinstance(name, str)}


# Words too common in any conversation to say which specialist it is for.
_SMALL_TALK = (
    "about after again all also and any anything are ask back because been before but can chat could "
    "day days did does for from get give goes going good have hello help here how into its just know "
    "like long make many may me more much need nice not now number one only other our out over person "
    "please question say see should some something tell than thank thanks that the their them then "
    "there these they thing this time today too two use very want was way week well were what when "
    "where which who why will with work would year yes you your"
)
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "maths": "maths math mathematics arithmetic calculation calculator calculate sum",
        "time": "time clock calendar date zone timezone",
        "memory": "memory note notes remember past search",
    }
)


def _stems(text: str) -> frozenset[str]:
    words = re.findall(r"[^\W\d_]{3,}", text.casefold())
    return frozenset(re.sub(r"(?:ations?|ing|ed|es|s|e)$", "", word) or word for word in words)


def find_call(turn: Turn) -> tuple[tuple[str, Any], ...]:
    """A call of a tool that is not shipped, if the words name it and hold all that it needs."""
    stems = _stems(turn.words[:MAX_READ_CHARS])
    for spec in turn.own_tools:
        named = _stems(spec.name.replace("_", " "))
        if spec.name not in _SHIPPED and named and named <= stems:
            filled = _fill_in(spec, turn.words[:MAX_READ_CHARS])
            if filled is not None:
                return ((spec.name, filled),)
    return ()


_SHIPPED = (
    "calculate",
    "current_time",
    "convert_time",
    "days_between",
    "add_to_date",
    "add_note",
    "list_notes",
    "remove_note",
    "search_past_chats",
)


def _fill_in(spec: ToolSpec, words: str) -> dict[str, Any] | None:
    numbers = re.findall(r"-?[0-9]+(?:\.[0-9]+)?", words)
    after = re.findall(
        r"\b(?:in|for|of|about|to|from|at|on|with|:)\s+([^,.;?!]+?)(?=\s+(?:to|from)\b|[,.;?!]|$)", words
    )
    filled: dict[str, Any] = {}
    for name in spec.input_schema.get("required", ()):
        schema = spec.input_schema.get("properties", {}).get(name, {})
        kind, choices = schema.get("type"), schema.get("enum", ())
        if choices:
            fitting = [choice for choice in choices if str(choice).casefold() in words.casefold()]
        elif kind in ("integer", "number"):
            fitting = [_number(text) for text in numbers if kind == "number" or "." not in text][:1]
            numbers = numbers[1:]
        elif kind == "string":
            fitting, after = (after or [words])[:1], after[1:]
        else:
            return None
        if not fitting:
            return None
        filled[name] = fitting[0]
    return filled


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
