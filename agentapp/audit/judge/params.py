"""The functions that change their arguments, either themselves or in a function that they call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from agentapp.audit.facts import STEP, Call, Function, Module, Write, join_path
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.changes import find_changed_object
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id

PASSING_ROUNDS = 2  # how many times changes are propagated from callees to callers
MAX_CHANGES_PER_PARAMETER = 8  # propagated changes beyond these are ignored


class Change(NamedTuple):
    """A change of an object that was passed as a parameter."""

    steps: tuple[str, ...]  # from the parameter to the changed object
    write: Write
    where: Id  # the function that contains the write


class Params:
    def __init__(self, program: Program, calls: Calls) -> None:
        self._program, self._calls = program, calls
        self._changed: dict[Id, dict[str, list[Change]]] = {}
        self._collect_changes()

    def changes(self, module: Module, function: Function, call: Call) -> Iterator[tuple[str, Change]]:
        """The changes that a call makes to its arguments, each with the path of the argument."""
        if not call.args:
            return
        for callee, shift in self._callees(module, function, call):
            changed = self._changed.get(callee)
            if changed:
                facts = self._program.function(callee)
                offset = shift + takes_self(facts)
                for where, path in call.args:
                    name = find_parameter(facts.params, where, offset)
                    if not name or name == "*":
                        name, path = facts.vararg, path if name else join_path(path, "^")
                    for change in changed.get(name, ()):
                        yield path, change

    def _callees(self, module: Module, function: Function, call: Call) -> Iterator[tuple[Id, int]]:
        """The functions that are called, and how far argument positions are shifted.

        A function that is passed to unknown code is assumed to be called with the arguments after it.
        """
        called = self._calls.find_callees(module.name, call.path, function.owner)
        yield from ((callee, 0) for callee in called)
        if not called:
            for where, path in call.args:
                if where.isdigit() and path[0] in "gds":
                    given = self._program.function_at(module.name, path, function.owner)
                    if given is not None:
                        yield given, -int(where) - 1

    def _collect_changes(self) -> None:
        passing: list[tuple[Module, Function, Call]] = []
        for module, function in self._program.functions():
            writes = list(function.writes)
            for call in function.calls:
                if call.path.startswith("p:") and (write := find_changed_object(call)) is not None:
                    writes.append(write)
                if any(path.startswith("p:") for _, path in call.args):
                    passing.append((module, function, call))
            id = (module.name, function.name)
            mine: dict[str, list[Change]] = defaultdict(list)
            for write in writes:
                if write.path.startswith("p:") and not write.path.endswith("~"):
                    root, *steps = write.path.split(STEP)
                    mine[root[2:]].append(Change(tuple(steps), write, id))
            if mine:
                self._changed[id] = dict(mine)
        for _ in range(PASSING_ROUNDS):
            for module, function, call in passing:
                self._pass_on(module, function, call)

    def _pass_on(self, module: Module, function: Function, call: Call) -> None:
        for path, change in self.changes(module, function, call):
            if path.startswith("p:") and path.count(STEP) == 0:
                mine = self._changed.setdefault((module.name, function.name), {}).setdefault(path[2:], [])
                if len(mine) < MAX_CHANGES_PER_PARAMETER and all(
                    known.write.line != change.write.line for known in mine
                ):
                    mine.append(change)


def takes_self(function: Function) -> bool:
    """Whether the first parameter is ``self`` or ``cls``."""
    return bool(function.owner) and "g:staticmethod" not in function.decorators


def find_parameter(params: tuple[str, ...], where: str, offset: int = 0) -> str:
    """The name of the parameter for an argument that is passed by position or by name."""
    if not where.isdigit():
        return where
    index = int(where) + offset
    return params[index] if 0 <= index < len(params) else ""
