"""The rules of the demo model: obey a command, use a tool, hand the turn on, or say what was found."""

from __future__ import annotations

import re

from agentapp.agents.providers.demo.commands import COMMANDS
from agentapp.agents.providers.demo.matching import find_call, find_specialist
from agentapp.agents.providers.demo.tasks import Task, find_tasks
from agentapp.agents.providers.demo.turn import Decision, Turn, hand_back, hand_over

INTRODUCTION = "I am the offline demo model: I answer by rule and understand only a little (try /help)."


def decide(turn: Turn) -> Decision:
    word, _, rest = turn.words.strip().partition(" ")
    if command := COMMANDS.get(word):
        return command(turn, rest.strip()) or _report(turn)
    if _RECAP.match(turn.words):
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(turn.said, 1))
        return Decision(f"In this chat you said:\n\n{listed}")
    tasks = find_tasks(turn.words)
    return _use_tools(turn, tasks) or _hand_on(turn, tasks) or _report(turn)


_RECAP = re.compile(
    r"\s*(?:please\s+)?(?:recap|what (?:did|have) i (?:just )?(?:say|said|tell you|told you))\b.{0,30}\s*$",
    re.I,
)


def _use_tools(turn: Turn, tasks: tuple[Task, ...]) -> Decision | None:
    if turn.has_used_tools:
        return None
    calls = tuple((task.tool, task.input) for task in tasks if task.tool in turn.offered)
    calls = calls or find_call(turn)
    return Decision(calls=calls) if calls else None


def _hand_on(turn: Turn, tasks: tuple[Task, ...]) -> Decision | None:
    for_others = tuple(task for task in tasks if task.tool not in turn.offered)
    if "hand_over" in turn.offered:
        to = find_specialist(turn, for_others)
        return hand_over(to, turn.words) if to else None
    if "hand_back" in turn.offered and for_others:
        if turn.has_used_tools:
            return hand_back("; ".join(result.content for result in turn.results))
        if not turn.handed_over:
            return hand_back(f"This is not my job: {turn.words}")
    return None


def _report(turn: Turn) -> Decision:
    """The answer in words: what the tools and other agents said; without any, the user's own words."""
    notes = [_name_colleague(note) for note in turn.notes]
    if not turn.results:
        return Decision("\n\n".join([INTRODUCTION, *notes, f"You said: {turn.words}"]))
    found = [] if turn.handed_over else notes
    found += [_quote(result.content) for result in turn.results if not result.is_error]
    parts = [_list("Here is what I found:", found)] if found else []
    parts += [
        f"That did not work: {_name_colleague(result.content)}" for result in turn.results if result.is_error
    ]
    return Decision("\n\n".join(parts))


def _list(heading: str, items: list[str]) -> str:
    if len(items) == 1:
        return heading + ("\n\n" if "\n" in items[0] else " ") + items[0]
    return "\n".join([heading, "", *(f"- {item}" for item in items)])


def _quote(content: str) -> str:
    content = _name_colleague(content)
    # In Markdown, the asterisks of 2*3*4 would be read as emphasis.
    starred = "*" in content and "\n" not in content and "`" not in content
    return f"`{content}`" if starred else content


def _name_colleague(note: str) -> str:
    note = re.sub(r"^\[Handed back by ([^\]]*)\]", r"\1 says:", note)
    return re.sub(r"^\[Handed over by ([^\]]*)\]", r"\1 handed this over to me.", note)
