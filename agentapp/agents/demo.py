"""The offline demo model: answers by rule from what a model would see, so all can be tried without a key."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentapp.agents.provider import Message, ModelCall, Reply, ToolCall, ToolResult, ToolSpec, Usage
from agentapp.errors import ProviderFailed, ProviderGarbled

MAX_SLOW = 300.0
MAX_LONG = 5_000
MAX_CALLS = 8
CUT_AFTER_PIECES = 6
# Cues are looked for at the beginning only, so that a very long message costs no more than a long one.
READ_CHARS = 2_000

INTRODUCTION = "I am the offline demo model: I answer by rule and understand only a little (try /help)."
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


class DemoProvider:
    """Streams what `answer` says word by word, with `delay` seconds in between."""

    def __init__(self, delay: float = 0.02, sleep: Callable[[float], object] = time.sleep) -> None:
        self._delay, self._sleep = delay, sleep

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        for step in _steps(call, self._delay):
            if isinstance(step, _Wait):
                self._sleep(step.seconds)
            else:
                yield step


class AsyncDemoProvider:
    """The same for asyncio."""

    def __init__(
        self, delay: float = 0.02, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._delay, self._sleep = delay, sleep

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Reply]:
        for step in _steps(call, self._delay):
            if isinstance(step, _Wait):
                await self._sleep(step.seconds)
            else:
                yield step


@dataclass(frozen=True, slots=True)
class _Wait:
    seconds: float


def _steps(call: ModelCall, delay: float) -> Iterator[_Wait | str | Reply]:
    reply = answer(call)
    words = _look(call).words
    left = _slowness(words)
    while left > 0:
        yield _Wait(min(1.0, left))
        yield ""
        left -= 1.0
    for number, piece in enumerate(re.findall(r"\S+\s*|\s+", reply.text)):
        if number == CUT_AFTER_PIECES and words.split() == ["/fail", "later"]:
            spent = Usage(reply.usage.input_tokens, number, 1)
            raise ProviderGarbled("The demo model was told to fail after some words.", usage=spent)
        if number and delay > 0:
            yield _Wait(delay)
        yield piece
    yield reply


def _slowness(words: str) -> float:
    asked = re.match(r"/slow\s+([0-9]+(?:\.[0-9]+)?)\s*$", words)
    return min(MAX_SLOW, float(asked[1])) if asked else 0.0


def answer(call: ModelCall) -> Reply:
    """What the demo model says to this call: always the same to the same. Raises only for ``/fail``."""
    move = _decide(_look(call))
    text = move.text[: 4 * call.max_tokens]
    digest = _digest(call)
    calls = tuple(
        ToolCall(f"demo_{digest}_{number}", name, value)
        for number, (name, value) in enumerate(move.calls[:MAX_CALLS], 1)
    )
    output = _tokens(text) + sum(_tokens(f"{made.name}{made.input}") for made in calls)
    stop = "tool_use" if calls else "max_tokens" if len(text) < len(move.text) else "end_turn"
    return Reply(text, calls, Usage(_input_tokens(call), output, 1), stop)


def _digest(call: ModelCall) -> str:
    return hashlib.sha256(repr((call.system, call.messages)).encode("utf-8", "replace")).hexdigest()[:16]


def _tokens(text: str) -> int:
    """About four characters a token."""
    return -(-len(text) // 4)


def _input_tokens(call: ModelCall) -> int:
    seen = [call.system]
    for message in call.messages:
        seen += [*message.texts, *(str(made.input) for made in message.calls)]
        seen += [result.content for result in message.results]
    seen += [f"{spec.name} {spec.description} {dict(spec.input_schema)}" for spec in call.tools]
    return sum(map(_tokens, seen))


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a call shows of the turn: the person's words, colleagues' notes on them, what was done since."""

    said: tuple[str, ...]
    notes: tuple[str, ...]
    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    offered: Mapping[str, ToolSpec]

    @property
    def words(self) -> str:
        return self.said[-1] if self.said else ""

    @property
    def handed_over(self) -> bool:
        return any(note.startswith("[Handed over ") for note in self.notes)

    @property
    def own_tools(self) -> tuple[ToolSpec, ...]:
        return tuple(spec for name, spec in self.offered.items() if name not in _MOVES)

    @property
    def worked(self) -> bool:
        return any(made.name not in _MOVES for made in self.calls)


@dataclass(frozen=True, slots=True)
class _Move:
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


_MOVES = ("hand_over", "hand_back")


def _look(call: ModelCall) -> _Turn:
    asked = [message for message in call.messages if message.role == "user" and _person(message)]
    start = max((n for n, message in enumerate(call.messages) if message in asked[-1:]), default=-1)
    since = call.messages[start + 1 :]
    return _Turn(
        said=tuple("\n".join(_person(message)) for message in asked),
        notes=tuple(text for message in asked[-1:] for text in message.texts if text not in _person(message)),
        calls=tuple(made for message in since for made in message.calls),
        results=tuple(result for message in since for result in message.results),
        offered=MappingProxyType({spec.name: spec for spec in call.tools}),
    )


def _person(message: Message) -> tuple[str, ...]:
    """The person's own words. A note never comes first, so a person may begin with "[Handed " too."""
    first = message.texts[:1] if not message.results else ()
    return first + tuple(text for text in message.texts[len(first) :] if not text.startswith("[Handed "))


def _decide(turn: _Turn) -> _Move:
    word, _, rest = turn.words.strip().partition(" ")
    if command := _COMMANDS.get(word):
        return command(turn, rest.strip()) or _tell(turn)
    if _RECAP.match(turn.words):
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(turn.said, 1))
        return _Move(f"In this chat you said:\n\n{listed}")
    jobs = find_jobs(turn.words)
    return _use_tools(turn, jobs) or _pass_on(turn, jobs) or _tell(turn)


_RECAP = re.compile(
    r"\s*(?:please\s+)?(?:recap|what (?:did|have) i (?:just )?(?:say|said|tell you|told you))\b.{0,30}\s*$",
    re.I,
)


def _use_tools(turn: _Turn, jobs: tuple[Job, ...]) -> _Move | None:
    if turn.worked:
        return None
    calls = tuple((job.tool, job.input) for job in jobs if job.tool in turn.offered)
    calls = calls or _guessed_call(turn)
    return _Move(calls=calls) if calls else None


def _pass_on(turn: _Turn, jobs: tuple[Job, ...]) -> _Move | None:
    for_others = tuple(job for job in jobs if job.tool not in turn.offered)
    if "hand_over" in turn.offered:
        to = _next_specialist(turn, for_others)
        return _Move(calls=(("hand_over", {"to": to, "task": turn.words}),)) if to else None
    if "hand_back" in turn.offered and for_others:
        if turn.worked:
            return _hand_back("; ".join(result.content for result in turn.results))
        if not turn.handed_over:
            return _hand_back(f"This is not my job: {turn.words}")
    return None


def _hand_back(summary: str) -> _Move:
    return _Move(calls=(("hand_back", {"summary": summary}),))


def _tell(turn: _Turn) -> _Move:
    """The answer in words: what the tools and colleagues said, else the person's words said back."""
    notes = [_colleague(note) for note in turn.notes]
    if not turn.results:
        return _Move("\n\n".join([INTRODUCTION, *notes, f"You said: {turn.words}"]))
    found = [] if turn.handed_over else notes
    found += [_quoted(result.content) for result in turn.results if not result.is_error]
    parts = [_list("Here is what I found:", found)] if found else []
    parts += [
        f"That did not work: {_colleague(result.content)}" for result in turn.results if result.is_error
    ]
    return _Move("\n\n".join(parts))


def _list(heading: str, items: list[str]) -> str:
    if len(items) == 1:
        return heading + ("\n\n" if "\n" in items[0] else " ") + items[0]
    return "\n".join([heading, "", *(f"- {item}" for item in items)])


def _quoted(content: str) -> str:
    content = _colleague(content)
    # As Markdown, the stars of 2*3*4 would turn into slanted text.
    starred = "*" in content and "\n" not in content and "`" not in content
    return f"`{content}`" if starred else content


def _colleague(note: str) -> str:
    note = re.sub(r"^\[Handed back by ([^\]]*)\]", r"\1 says:", note)
    return re.sub(r"^\[Handed over by ([^\]]*)\]", r"\1 handed this over to me.", note)


def _next_specialist(turn: _Turn, jobs: tuple[Job, ...]) -> str | None:
    """Whom to hand over to: each kind of job's specialist, once a turn; without jobs, by shared words."""
    specialists = _specialists(turn.offered["hand_over"])
    tried = {str(made.input.get("to")) for made in turn.calls if isinstance(made.input, dict)}
    tried |= {name for note in turn.notes for name in re.findall(r"^\[Handed back by ([^\]]+)\]", note)}
    for kind in dict.fromkeys(job.kind for job in jobs):
        name = _best(specialists, _stems(_KINDS[kind]))
        if name and name not in tried:
            return name
    if jobs or tried or turn.worked:
        return None
    return _best(specialists, _stems(turn.words[:READ_CHARS]) - _stems(_SMALL_TALK))


def _best(specialists: tuple[tuple[str, str], ...], stems: frozenset[str]) -> str | None:
    scores = {
        name: 3 * len(stems & _stems(name)) + len(stems & _stems(description))
        for name, description in specialists
    }
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best] else None


def _specialists(spec: ToolSpec) -> tuple[tuple[str, str], ...]:
    """Names and descriptions, as far as the tool's own text and schema tell them."""
    to = spec.input_schema.get("properties", {}).get("to", {})
    text = f"{spec.description}\n{to.get('description', '')}"
    listed = dict(re.findall(r"^\W*([A-Za-z][\w-]*)\W*:\s*(.+)$", text, re.M))
    names = to.get("enum") or list(listed)
    return tuple((name, listed.get(name, "")) for name in names if isinstance(name, str))


# Too common in any conversation to tell whom it is for.
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


def _guessed_call(turn: _Turn) -> tuple[tuple[str, Any], ...]:
    """A call of a tool nobody told the demo about, if the words name it and hold what it needs."""
    stems = _stems(turn.words[:READ_CHARS])
    for spec in turn.own_tools:
        named = _stems(spec.name.replace("_", " "))
        if spec.name not in _SHIPPED and named and named <= stems:
            filled = _filled(spec, turn.words[:READ_CHARS])
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


def _filled(spec: ToolSpec, words: str) -> dict[str, Any] | None:
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
            fitting = [json.loads(number) for number in numbers if kind == "number" or "." not in number][:1]
            numbers = numbers[1:]
        elif kind == "string":
            fitting, after = (after or [words])[:1], after[1:]
        else:
            return None
        if not fitting:
            return None
        filled[name] = fitting[0]
    return filled


def _help(turn: _Turn, rest: str) -> _Move:
    return _Move(HELP)


def _markdown(turn: _Turn, rest: str) -> _Move:
    return _Move(MARKDOWN)


def _fail(turn: _Turn, rest: str) -> _Move:
    if rest == "later":
        return _Move("This answer will be cut off before it comes to its end, because you asked for that.")
    raise ProviderFailed("The demo model was told to fail.")


def _slow(turn: _Turn, rest: str) -> _Move:
    return _Move(f"Here I am, after {_slowness(turn.words):g} seconds.")


def _long(turn: _Turn, rest: str) -> _Move:
    count = min(int(rest), MAX_LONG) if re.fullmatch("[0-9]{1,9}", rest) else 200
    return _Move(" ".join(map(str, range(1, count + 1))))


def _call(turn: _Turn, rest: str) -> _Move | None:
    if turn.calls or turn.notes:
        return None
    name, _, source = rest.partition(" ")
    if name not in turn.offered:
        offered = ", ".join(turn.offered) or "none"
        return _Move(f"The tool {name!r} is not offered to me here. Offered are: {offered}.")
    return _with_json(source, lambda value: _Move(calls=((name, value),)))


def _handover(turn: _Turn, rest: str) -> _Move | None:
    name, _, source = rest.partition(" ")
    if any(made.name == "hand_over" for made in turn.calls) or turn.handed_over:
        return None
    if "hand_over" in turn.offered:
        task = "The person asked for you with /handover."
        return _with_json(source, lambda value: _Move(calls=(("hand_over", _order(name, task, value)),)))
    if "hand_back" in turn.offered:
        return _hand_back(f"The person asks for {name}.")
    return _Move("There is nobody here to hand over to.")


def _order(to: str, task: str, parameters: Any) -> dict[str, Any]:
    order = {"to": to, "task": task}
    return {**order, "parameters": parameters} if parameters else order


def _handback(turn: _Turn, rest: str) -> _Move | None:
    if turn.notes:
        return None
    if "hand_back" in turn.offered:
        return _hand_back(rest or "The person asked for you with /handback.")
    return _Move("I am the front agent: there is nobody to hand back to.")


def _loop(turn: _Turn, rest: str) -> _Move:
    if turn.own_tools:
        spec = turn.own_tools[0]
        return _Move(calls=((spec.name, _sample(spec)),))
    if "hand_over" in turn.offered:
        names = [name for name, _ in _specialists(turn.offered["hand_over"])]
        return _Move(calls=(("hand_over", _order((names or [""])[0], "Call a tool for ever.", None)),))
    return (
        _hand_back("I have no tool to call.") if turn.offered else _Move("I have no tool to call for ever.")
    )


def _sample(spec: ToolSpec) -> dict[str, Any]:
    samples = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
    schemas = spec.input_schema.get("properties", {})
    required = spec.input_schema.get("required", ())
    return {name: samples.get(schemas.get(name, {}).get("type"), "1") for name in required}


def _with_json(source: str, then: Callable[[Any], _Move]) -> _Move:
    try:
        return then(json.loads(source) if source.strip() else {})
    except (ValueError, RecursionError):
        return _Move(f"That is not valid JSON: {source}")


_COMMANDS: Mapping[str, Callable[[_Turn, str], _Move | None]] = MappingProxyType(
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


@dataclass(frozen=True, slots=True)
class Job:
    """Something the words ask for: its kind, and the shipped tool that does it with this input."""

    kind: str
    tool: str
    input: Mapping[str, Any]


def find_jobs(words: str) -> tuple[Job, ...]:
    """Everything in the words that a shipped tool could do. What is to be noted is not looked into."""
    if note := _note_job(words.strip()):
        return (note,)
    jobs, rest = _time_jobs(words[:READ_CHARS])
    return (*jobs, *(Job("maths", "calculate", {"expression": sum_}) for sum_ in find_sums(rest)))


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


def _note_job(words: str) -> Job | None:
    for tool, key, pattern in _NOTES:
        # Only a note may be long; the other patterns would take very long on very long words.
        if found := re.match(pattern, words if tool == "add_note" else words[:READ_CHARS], re.I | re.S):
            value = found["value"] if key else ""
            return Job("memory", tool, {key: int(value) if key == "number" else value} if key else {})
    return None


_DATE = r"(?:\d{4}-\d\d-\d\d|today|tomorrow|yesterday|now)\b"
_CLOCK = r"(?:(?:\d{4}-\d\d-\d\d[ T])?\d{1,2}(?::\d\d){1,2}(?:\s*[ap]m\b)?|\d{1,2}\s*[ap]m\b|\bnow\b)"
_STEP = "day|week|month|year"
_PLACE = (
    r"[A-Za-zÀ-ž][\w/+:'.-]*"
    r"(?: (?!(?:and|or|to|in|is|time|now|right|please|at)\b)[A-Za-zÀ-ž][\w'.-]*){0,2}"
)
_AND = r"\s*(?:,|&|\band\b|\bor\b)+\s*"
_CONVERSION = re.compile(
    rf"(?P<when>{_CLOCK})\s+(?:(?:from|in|at)\s+)?(?P<source>{_PLACE})(?:\s+time)?"
    rf"\s+(?:to|in|into|is in)\s+(?P<target>{_PLACE})",
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


def _time_jobs(words: str) -> tuple[tuple[Job, ...], str]:
    """The jobs, and the words with these taken out so that no date is taken for a subtraction."""
    jobs: list[Job] = []
    for pattern, read in (
        (_CONVERSION, _read_conversion),
        (_BETWEEN, _read_between),
        (_ADDITION, _read_addition),
        (_TIME_IN, _read_places),
        (_TIME_NOW, _read_now),
    ):
        for found in pattern.finditer(words):
            jobs += read(found)
        words = pattern.sub(" ; ", words)
    return tuple(jobs), re.sub(r"\d{4}-\d\d-\d\d|\d{1,2}(?::\d\d)+", " ; ", words)


def _read_conversion(found: re.Match[str]) -> Iterable[Job]:
    asked = {"when": found["when"], "from_zone": found["source"], "to_zone": found["target"].rstrip(".:'")}
    yield Job("time", "convert_time", asked)


def _read_between(found: re.Match[str]) -> Iterable[Job]:
    start, end = found["start"] or found["since"] or "today", found["end"] or "today"
    yield Job("time", "days_between", {"start": start, "end": end})


def _read_addition(found: re.Match[str]) -> Iterable[Job]:
    back = found["way"] == "before" or found["sign"] in ("minus", "-")
    count, unit = int(found["count"] or found["more"]), (found["unit"] or found["step"]).lower()
    start = found["start"] or found["first"]
    yield Job("time", "add_to_date", {"start": start, f"{unit}s": -count if back else count})


def _read_places(found: re.Match[str]) -> Iterable[Job]:
    for place in re.split(_AND, found["places"], flags=re.I):
        yield Job("time", "current_time", {"zone": place.rstrip(".:'")})


def _read_now(found: re.Match[str]) -> Iterable[Job]:
    yield Job("time", "current_time", {"zone": "UTC"})


_SPOKEN = (
    (r"\bsquare root of (\d[\d.,]*\d|\d)", r"sqrt(\1)"),
    (r"(?<=\d)\s+squared\b", "^2"),
    (r"(?<=\d)\s+cubed\b", "^3"),
    (r"(?<=\d)\s*per ?cent\b", "%"),
    (r"(?<=[\d)])\s+(?:to the power of|to the power)\s+(?=[\d(])", "^"),
    (r"(?<=[\d)%])\s+plus\s+(?=[\d(])", " + "),
    (r"(?<=[\d)])\s+minus\s+(?=[\d(])", " - "),
    (r"(?<=[\d)])\s+(?:times|multiplied by|x)\s+(?=[\d(])", " * "),
    (r"(?<=[\d)])\s+(?:divided by|over)\s+(?=[\d(])", " / "),
)
_FUNCTION = r"(?:sqrt|abs|round|floor|ceil|min|max|factorial|exp|ln|log10|log|sin|cos|tan)\s*\("
_OPERAND = r"(?:\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|pi\b|e\b)"
_PIECE = (
    rf"(?:{_FUNCTION}|{_OPERAND}|%\s*of\b|mod\b|\*\*|//|[-+*/^%!)×÷−]"
    rf"|\((?=\s*(?:{_FUNCTION}|{_OPERAND}|[-+(−]))|,(?=\s*(?:{_FUNCTION}|{_OPERAND}|[-+(−])))"
)
# Atomic: no part is given back, so "12-34abc" never yields "12-3", and the search stays quick.
_RUN = re.compile(rf"(?<![\w.:/#@$€+*^%-])(?>{_PIECE}(?:\s*{_PIECE})*)(?![\w@#:])", re.I)
_JOINED = re.compile(
    rf"[\d)%!ie]\s*(?:\*\*|//|[-+*/^%×÷−]|%\s*of\b|\bmod\b)\s*[-+(]*\s*[\d.(a-z]|{_FUNCTION}|^\d+!$", re.I
)
_ASKS = re.compile(r"\b(?:what|how much|calculate|compute|work out|evaluate|solve)\b|=", re.I)


def find_sums(words: str) -> tuple[str, ...]:
    """The arithmetic expressions in a text, as they stand there."""
    for spoken, written in _SPOKEN:
        words = re.sub(spoken, written, words, flags=re.I)
    runs = [part for found in _RUN.finditer(words) for part in _split_at_commas(found.group())]
    sums = [_trimmed(run) for run in runs]
    alone = re.fullmatch(r"\d+[-/]\d+", words.strip(" ?.!"))
    asked = bool(_ASKS.search(words) or alone)
    return tuple(dict.fromkeys(found for found in sums if _is_sum(found, asked)))


def _split_at_commas(run: str) -> list[str]:
    """At commas outside brackets: "2+2, 3*7" is two, "max(1, 2)" and "1,234 + 1" are one."""
    cuts, depth = [-1], 0
    for place, sign in enumerate(run):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0 and not re.match(r",\d{3}(?!\d)", run[place:]):
            cuts.append(place)
    return [run[start + 1 : end] for start, end in zip(cuts, [*cuts[1:], len(run)], strict=True)]


def _trimmed(run: str) -> str:
    run = run.strip().rstrip("+-*/^×÷−, ")
    if run.count(")") > run.count("("):
        run = run.rstrip(") ")
    if run.endswith("!") and not re.fullmatch(r"\d+!", run):
        run = run.rstrip("! ")
    return run.lstrip("*/^%×÷), ")


def _is_sum(run: str, asked: bool) -> bool:
    if not _JOINED.search(run) or re.search(r"[\d)]\s+[\d(.]", run):
        return False
    # "pages 3-5", "555-1234" and "1/2 cup" are no sums unless somebody asks for one.
    return asked or not re.fullmatch(r"\d+(?:[-/]\d+)+", run)
