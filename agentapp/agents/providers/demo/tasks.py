"""Finding what a message asks for, if a shipped tool can do it: notes, searches, times, dates, sums."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentapp.agents.providers.demo.arithmetic import find_expressions

# Only the beginning of a message is searched, so that a very long one costs no more than a long one.
MAX_READ_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Task:
    """Something that a message asks for: its kind, and the shipped tool that does it with this input."""

    kind: str
    tool: str
    input: Mapping[str, Any]


def find_tasks(words: str) -> tuple[Task, ...]:
    """Everything in the words that a shipped tool could do. The text of a new note is not searched."""
    if note := _find_note_task(words.strip()):
        return (note,)
    tasks, rest = _find_time_tasks(words[:MAX_READ_CHARS])
    return (*tasks, *(Task("maths", "calculate", {"expression": found}) for found in find_expressions(rest)))


_NOTES = (
    (
        "add_note",
        "text",
        r"(?:please\s+)?(?:(?:take|make|add) a note|add note|note|remember|don'?t forget)\b"
        r"(?!\s*\d+\s*$)\s*[:,]?\s*(?:that\s+|to\s+)?(?P<value>\S.*)",
    ),
    (
        "remove_note",
        "number",
        r"(?:please\s+)?(?:remove|delete|forget) (?:my )?note (?:number |#)?(?P<value>\d{1,9})\b",
    ),
    (
        "search_past_chats",
        "words",
        r"(?:please\s+)?(?:search|look) (?:in |through )?(?:all )?(?:my )?(?:past |old |earlier |previous )?"
        r"chats? for\s+(?P<value>\S.*?)[?.!\s]*$",
    ),
    (
        "search_past_chats",
        "words",
        r"(?:please\s+)?(?:find|search(?: for)?|look for)\s+(?P<value>\S.*?)\s+in (?:all )?(?:my )?"
        r"(?:past |old |earlier |previous )?chats\b",
    ),
    (
        "list_notes",
        "",
        r"(?:please\s+)?(?:(?:list|show|read|tell)(?: me)? |what are |what'?s in |what is in )?"
        r"(?:all )?(?:of )?(?:my|the|all) notes\b|(?:list|show)(?: me)? notes\b|what did i note\b",
    ),
)


def _find_note_task(words: str) -> Task | None:
    for tool, key, pattern in _NOTES:
        # Only a note may be long; the other patterns would take very long on very long words.
        if found := re.match(pattern, words if tool == "add_note" else words[:MAX_READ_CHARS], re.I | re.S):
            value = found["value"] if key else ""
            return Task("memory", tool, {key: int(value) if key == "number" else value} if key else {})
    return None


_DATE = r"(?:\d{4}-\d\d-\d\d|today|tomorrow|yesterday|now)\b"
_CLOCK = r"(?:(?:\d{4}-\d\d-\d\d[ T])?\d{1,2}(?::\d\d){1,2}(?:\s*[ap]m\b)?|\d{1,2}\s*[ap]m\b|\bnow\b)"
_STEP = "day|week|month|year"
_PLACE = (
    r"[A-Za-zÀ-ž][\w/+:'.-]*"
    r"(?: (?!(?:and|or|to|in|is|time|now|right|please|at|what|then)\b)[A-Za-zÀ-ž][\w'.-]*){0,2}"
)
_AND = r"\s*(?:,|&|\band\b|\bor\b)+\s*"
_CONVERSION = re.compile(
    rf"(?P<when>{_CLOCK})\s+(?:(?:from|in|at)\s+)?(?P<source>{_PLACE})(?:\s+time)?"
    r"(?:\s+(?:to|in|into|is in)"
    r"|,?\s+(?:then\s+)?what(?:'s|\s+is)?\s+(?:the\s+)?time(?:\s+is\s+it)?\s+(?:in|at))"
    rf"\s+(?P<target>{_PLACE})",
    re.I,
)
_TIME_IN = re.compile(
    rf"\btime(?:\s+is\s+it)?(?:\s+(?:right\s+)?now)?\s+(?:in|at)\s+(?P<places>{_PLACE}(?:{_AND}"
    rf"(?!(?:what|how|when|who|is|add|calculate|compute|note|also|then|please|the|days)\b){_PLACE})*)",
    re.I,
)
_TIME_NOW = re.compile(
    r"\b(?:what(?:'s| is)?\s+(?:the\s+)?(?:current\s+)?(?:time|date|day)(?:\s+is\s+(?:it|today))?"
    r"|current\s+(?:time|date))(?=\s*(?:[?.!,;]|$|(?:right )?now\b|please\b|today\b|and\b))",
    re.I,
)
_BETWEEN = re.compile(
    rf"\bdays?\s+(?:(?:are|is)\s+(?:there\s+|it\s+)?)?(?:(?:between|from)\s+(?P<start>{_DATE})\s+(?:and|to|until|till)"
    rf"|left\s+until|until|till|to)\s+(?P<end>{_DATE})|\bdays?\s+since\s+(?P<since>{_DATE})",
    re.I,
)
_ADDITION = re.compile(
    rf"\b(?:add\s+)?(?P<count>\d{{1,7}}) (?P<unit>{_STEP})s?"
    rf"\s+(?P<way>after|from|to|before)\s+(?P<start>{_DATE})"
    rf"|\b(?P<first>{_DATE})\s*(?P<sign>plus|\+|minus|-)\s*(?P<more>\d{{1,7}}) (?P<step>{_STEP})s?",
    re.I,
)


def _find_time_tasks(words: str) -> tuple[tuple[Task, ...], str]:
    """The tasks, and the words without them, so that no date is taken for a subtraction."""
    tasks: list[Task] = []
    for pattern, read in (
        (_CONVERSION, _read_conversion),
        (_BETWEEN, _read_between),
        (_ADDITION, _read_addition),
        (_TIME_IN, _read_places),
        (_TIME_NOW, _read_now),
    ):
        for found in pattern.finditer(words):
            tasks += read(found)
        words = pattern.sub(" ; ", words)
    return tuple(tasks), re.sub(r"\d{4}-\d\d-\d\d|\d{1,2}(?::\d\d)+", " ; ", words)


def _read_conversion(found: re.Match[str]) -> Iterable[Task]:
    asked = {"when": found["when"], "from_zone": found["source"], "to_zone": found["target"].rstrip(".:'")}
    yield Task("time", "convert_time", asked)


def _read_between(found: re.Match[str]) -> Iterable[Task]:
    start, end = found["start"] or found["since"] or "today", found["end"] or "today"
    yield Task("time", "days_between", {"start": start, "end": end})


def _read_addition(found: re.Match[str]) -> Iterable[Task]:
    back = found["way"] == "before" or found["sign"] in ("minus", "-")
    count, unit = int(found["count"] or found["more"]), (found["unit"] or found["step"]).lower()
    start = found["start"] or found["first"]
    yield Task("time", "add_to_date", {"start": start, f"{unit}s": -count if back else count})


def _read_places(found: re.Match[str]) -> Iterable[Task]:
    for place in re.split(_AND, found["places"], flags=re.I):
        yield Task("time", "current_time", {"zone": place.rstrip(".:'")})


def _read_now(found: re.Match[str]) -> Iterable[Task]:
    yield Task("time", "current_time", {"zone": "UTC"})
