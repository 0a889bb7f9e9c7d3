"""Cached functions whose results belong to one caller and are given to all."""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.facts import Function, Module
from agentapp.audit.judge.hazards import Hazard
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.targets import Target
from agentapp.audit.known import CACHES, CALLER, PER_THREAD

FURTHEST = 3


class Caches:
    def __init__(self, program: Program, reach: Reach, makers: Makers) -> None:
        self._program, self._reach, self._makers = program, reach, makers

    def hazards(self) -> Iterator[Hazard]:
        for module, function in self._program.functions():
            if not self._program.is_cached(module.name, function) or self._program.is_not_served(module):
                continue
            if function.outer and not self._reach.is_made_once(module, module.functions[function.outer]):
                continue
            names = [self._program.decorator(module.name, path) for path in function.decorators]
            lines = zip(names, function.decorator_lines, strict=True)
            line = next((line for name, line in lines if CACHES.search(name)), function.line)
            if function.owner and "staticmethod" not in names and function.params[:1] == ("self",):
                what = f"`{function.name}` is a method, and its results are cached for all instances"
                yield Hazard(module.path, line, "ISO007", what)
            elif self._asks_who_calls(module, function):
                what = f"`{function.name}` depends on who calls it, and its results are cached for all"
                yield Hazard(module.path, line, "ISO007", what)

    def _asks_who_calls(self, module: Module, function: Function, depth: int = FURTHEST) -> bool:
        called = {call.path for call in function.calls}
        for path in [*called, *(read.path for read in function.reads)]:
            target = self._program.resolve(module.name, path, function.owner)
            if (target.kind == "ext" and CALLER.search(target.name)) or self._is_in_context(target):
                return True
            if target.kind == "func" and not target.steps and depth and path in called:
                at = self._program.modules[target.module]
                if self._asks_who_calls(at, self._program.function(target.id), depth - 1):
                    return True
        return False

    def _is_in_context(self, target: Target) -> bool:
        """What a context variable or a thread-local has is the caller's."""
        if target.kind != "var" or not target.steps:
            return False
        return PER_THREAD.search(self._makers.of_variable(target)) is not None
