"""The words of an arithmetic expression: numbers, names and operators, each with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentapp.agents.tool import ToolInputError
from agentapp.agents.tools.calculator.functions import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # "number", "name", "end", or the operator itself
    text: str
    position: int

    @property
    def name(self) -> str:
        """Names are the same in capitals. What is no name has none."""
        return self.text.lower() if self.kind == "name" else ""


_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<operator>\*\*|//|[-+*/%^!(),×÷·−])"
)
_GROUPED = re.compile(r"(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?)(?![0-9.,])")
_SAME_AS: Mapping[str, str] = MappingProxyType({"**": "^", "×": "*", "·": "*", "÷": "/", "−": "-"})


def tokens_of(source: str) -> tuple[Token, ...]:
    """Ends with a token of kind "end". Commas are left only where they separate a function's arguments."""
    tokens: list[Token] = []
    calls = [False]  # for each open bracket, and for none: is it a function's, where commas separate?
    at = 0
    while at < len(source):
        if source[at].isspace():
            at += 1
            continue
        found = (None if calls[-1] else _GROUPED.match(source, at)) or _TOKEN.match(source, at)
        if found is None:
            raise problem(f"{source[at]!r} is not understood", at)
        token = _token(found)
        if token.kind == "(":
            calls.append(bool(tokens) and tokens[-1].name in FUNCTIONS)
        elif token.kind == ")" and len(calls) > 1:
            calls.pop()
        elif token.kind == "," and not calls[-1]:
            raise problem(
                "the comma fits neither 1,234.5 nor a function's arguments (the decimal sign is a point)", at
            )
        tokens.append(token)
        at = found.end()
    return (*tokens, Token("end", "", len(source)))


def _token(found: re.Match[str]) -> Token:
    text = found.group()
    match found.lastgroup:
        case "number":
            return Token("number", text.replace(",", ""), found.start())
        case "name":
            return Token("name", text, found.start())
        case _:
            return Token(_SAME_AS.get(text, text), text, found.start())


def problem(what: str, at: int) -> ToolInputError:
    return ToolInputError(f"{what} at position {at + 1}")
