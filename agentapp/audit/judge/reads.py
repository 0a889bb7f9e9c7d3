"""The reads of shared objects, in functions that requests can reach."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from agentapp.audit.facts import Function, Module, Read
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.targets import Target
from agentapp.audit.judge.variables import key_of
from agentapp.audit.judge.violations import Key

ReadBy = tuple[Module, Function, Read]


class Reads:
    def __init__(self, program: Program, reach: Reach) -> None:
        self._program, self._reach = program, reach

    def reads_of(self, key: Key) -> list[ReadBy]:
        kind, module, name, *rest = key
        if kind not in ("attr", "class"):
            return self._by_key.get(key, [])
        below = [(module, name), *self._program.classes.subclasses.get((module, name), ())]
        wanted = below if kind == "class" else below[:1]
        return [found for id in wanted for found in self._by_key.get(("attr", *id, *rest), ())]

    @cached_property
    def _by_key(self) -> dict[Key, list[ReadBy]]:
        found: dict[Key, list[ReadBy]] = defaultdict(list)
        for module, function in self._program.functions():
            if not function.reads or (module.name, function.name) not in self._reach.reached:
                continue
            owner = self._program.owner_of(module, function)
            for read in function.reads:
                key = _key(self._program.resolve(module.name, read.path, owner))
                if key is not None:
                    found[key].append((module, function, read))
        return found


def _key(target: Target) -> Key | None:
    match target.kind:
        case "var":
            return key_of(target)
        case "self" | "class" if target.steps:
            return ("attr", *target.id, target.steps[0][1:])
        case "cell":
            outer, _, variable = target.name.rpartition(":")
            return ("cell", target.module, outer, variable)
    return None
