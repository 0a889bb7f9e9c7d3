"""One line of `agentapp doctor`: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

# All is well; worth knowing; something must be done.
State = Literal["ok", "note", "do"]


@dataclass(frozen=True, slots=True)
class Line:
    check: str
    state: State
    text: str

    def without(self, secrets: Iterable[str]) -> Line:
        """The same line with each of these, and what an address has before its @, as stars."""
        text = re.sub(r"(?<=//)[^/@\s]+(?=@)", "***", self.text)
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        return replace(self, text=text)


def ok(check: str, text: str) -> Line:
    return Line(check, "ok", text)


def note(check: str, text: str) -> Line:
    return Line(check, "note", text)


def do(check: str, text: str) -> Line:
    return Line(check, "do", text)
