"""An object that outlives requests, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agentapp.audit.facts import Function, Module

Key = tuple[str, ...]


class Violation(NamedTuple):
    """The rule that a write breaks, and the object that it changes."""

    rule: str
    key: Key
    name: str  # as people would call it
    module: str
    line: int


class Access(NamedTuple):
    violation: Violation
    module: Module
    function: Function
    line: int
    locks: frozenset[str]
    lazy: int
    is_in_place: bool  # whoever reads meanwhile may see half of it


@dataclass(slots=True)
class SharedObject:
    key: Key
    writes: list[Access] = field(default_factory=list)
