"""What the demo model does next: obey a command, use a tool, pass the turn on, or say what it knows."""

from __future__ import annotations

import re

from agentapp.agents.providers.demo.commands import COMMANDS
from agentapp.agents.providers.demo.cues import Job, find_jobs
from agentapp.agents.providers.demo.guesses import guess_call, guess_specialist
from agentapp.agents.providers.demo.turn import Move, Turn, hand_back, hand_over

INTRODUCTION = "I am the offline demo model: I answer by rule and understand only a little (try /help)."


def decide(turn: Turn) -> Move:
    word, _, rest = turn.words.strip().partition(" ")
    if command := COMMANDS.get(word):
        return command(turn, rest.strip()) or _tell(turn)
    if _RECAP.match(turn.words):
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(turn.said, 1))
        return Move(f"In this chat you said:\n\n{listed}")
    jobs = find_jobs(turn.words)
    return _use_tools(turn, jobs) or _pass_on(turn, jobs) or _tell(turn)


_RECAP = re.compile(
    r"\s*(?:please\s+)?(?:recap|what (?:did|have) i (?:just )?(?:say|said|tell you|told you))\b.{0,30}\s*$",
    re.I,
)


def _use_tools(turn: Turn, jobs: tuple[Job, ...]) -> Move | None:
    if turn.worked:
        return None
    calls = tuple((job.tool, job.input) for job in jobs if job.tool in turn.offered)
    calls = calls or guess_call(turn)
    return Move(calls=calls) if calls else None


def _pass_on(turn: Turn, jobs: tuple[Job, ...]) -> Move | None:
    for_others = tuple(job for job in jobs if job.tool not in turn.offered)
    if "hand_over" in turn.offered:
        to = guess_specialist(turn, for_others)
        return hand_over(to, turn.words) if to else None
    if "hand_back" in turn.offered and for_others:
        if turn.worked:
            return hand_back("; ".join(result.content for result in turn.results))
        if not turn.handed_over:
            return hand_back(f"This is not my job: {turn.words}")
    return None


def _tell(turn: Turn) -> Move:
    """The answer in words: what the tools and colleagues said, else the person's words said back."""
    notes = [_colleague(note) for note in turn.notes]
    if not turn.results:
        return Move("\n\n".join([INTRODUCTION, *notes, f"You said: {turn.words}"]))
    found = [] if turn.handed_over else notes
    found += [_quoted(result.content) for result in turn.results if not result.is_error]
    parts = [_list("Here is what I found:", found)] if found else []
    parts += [
        f"That did not work: {_colleague(result.content)}" for result in turn.results if result.is_error
    ]
    return Move("\n\n".join(parts))


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
