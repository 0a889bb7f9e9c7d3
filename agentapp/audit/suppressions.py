"""Comments that suppress a finding: ``# agentapp: shared ok - <reason>``.

A comment applies to a finding if it is on the same line, on the first or last line of the same statement, or
on a line where an object that the message names is defined. The decorators and the head of a function count
as one statement.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO

from agentapp.audit.judge import Hazard
from agentapp.audit.reading import File, Unreadable

MARK = b"agentapp: shared"
COMMENT = re.compile(r"#\s*agentapp: shared ok\b(?P<rest>.*)")
REASON = re.compile(r"\s*(?:--?|[–—:])\s*(?P<reason>\S.*)")
ANOTHER_COMMENT = re.compile(r"(?:^|\s)#\s")
HOME = re.compile(r":(\d+)[,)]")
BEFORE_HOME = (", from ", " (")


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments of one file, by line.

    ``nearby`` maps each line of a statement to the other lines on which a comment applies to it.
    """

    reasons: Mapping[int, str]
    nearby: Mapping[int, tuple[int, ...]]

    def about(self, line: int) -> Iterator[int]:
        for at in (line, *self.nearby.get(line, ())):
            if self.reasons.get(at):
                yield at


@dataclass(frozen=True, slots=True)
class Outcome:
    left: tuple[Hazard, ...]
    suppressed: tuple[Hazard, ...]


def find_comments(file: File) -> Comments | None:
    """Find the suppressions of a file; None if there are none. Raises `Unreadable`."""
    if MARK not in file.source:
        return None
    reasons: dict[int, str] = {}
    nearby: dict[int, tuple[int, ...]] = {}
    first, decorators, is_decorator = 0, list[int](), False
    try:
        for token in tokenize.tokenize(BytesIO(file.source).readline):
            if token.type == tokenize.COMMENT:
                if found := COMMENT.search(token.string):
                    reasons[token.start[0]] = _reason(found["rest"])
            elif token.type == tokenize.NEWLINE and first:
                lines = range(first, token.start[0] + 1)
                if decorators or is_decorator:  # decorators and the head of the function
                    decorators += lines
                    nearby |= dict.fromkeys(decorators, tuple(decorators))
                elif len(lines) > 1:
                    nearby |= dict.fromkeys(lines, (lines[0], lines[-1]))
                decorators = decorators if is_decorator else []
                first = 0
            elif not first and token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
                first, is_decorator = token.start[0], token.string == "@"
    except (tokenize.TokenError, SyntaxError, ValueError) as exc:
        raise Unreadable(file.place.path, 1, f"has comments that cannot be read: {exc}") from None
    return Comments(reasons, nearby) if reasons else None


def apply_comments(hazards: Iterable[Hazard], comments: Mapping[str, Comments]) -> Outcome:
    """Separate the suppressed hazards from the others.

    Comments without a reason (ISO090) and comments that suppress nothing (ISO091) become hazards.
    """
    left: list[Hazard] = []
    suppressed: list[Hazard] = []
    used: set[tuple[str, int]] = set()
    for hazard in hazards:
        by = {
            (path, at)
            for path, line in _comment_places(hazard, comments)
            if path in comments
            for at in comments[path].about(line)
        }
        (suppressed if by else left).append(hazard)
        used |= by
    for path, found in comments.items():
        for line, reason in found.reasons.items():
            if not reason:
                left.append(Hazard(path, line, "ISO090", "the suppression gives no reason and has no effect"))
            elif (path, line) not in used:
                left.append(Hazard(path, line, "ISO091", "the suppression suppresses nothing"))
    return Outcome(tuple(left), tuple(suppressed))


def _reason(rest: str) -> str:
    """The text after the dash or colon, without a further comment such as ``# noqa``."""
    found = REASON.fullmatch(ANOTHER_COMMENT.split(rest)[0])
    return found["reason"] if found and re.search(r"\w", found["reason"]) else ""


def _comment_places(hazard: Hazard, comments: Mapping[str, Comments]) -> Iterator[tuple[str, int]]:
    """The lines on which a comment may be: that of the hazard, and those that its message names."""
    yield hazard.path, hazard.line
    if not comments:
        return
    for found in HOME.finditer(hazard.message):
        head = hazard.message[: found.start()]
        for before in BEFORE_HOME:
            start = head.find(before)
            while start >= 0:
                if (path := head[start + len(before) :]) in comments:
                    yield path, int(found[1])
                start = head.find(before, start + 1)
