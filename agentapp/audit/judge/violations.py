"""A shared object, the accesses to it, and the rule that each of them violates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agentapp.audit.facts import Function, Module

Key = tuple[str, ...]  # identifies a shared object: its kind, then module and name


class Violation(NamedTuple):
    """The rule that a write violates, and the object that it changes."""

    rule: str
    key: Key
    name: str  # of the object, as it is named in messages
    module: str
    line: int


class Access(NamedTuple):
    violation: Violation
    module: Module
    function: Function
    line: int
    locks: frozenset[str]
    lazy: int
    is_in_place: bool  # a reader may see a half-finished change


@dataclass(slots=True)
class SharedObject:
    key: Key
    writes: list[Access] = field(default_factory=list)
