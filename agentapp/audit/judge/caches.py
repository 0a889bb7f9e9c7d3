"""Cached functions whose result depends on the caller, but is returned to all callers."""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.facts import Function, Module
from agentapp.audit.judge.hazards import Hazard
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.targets import Target
from agentapp.audit.known_names import CACHE_DECORATORS, CALLER_NAMES, THREAD_LOCAL_CLASSES

MAX_CALL_DEPTH = 3  # how many calls are followed from the cached function


class Caches:
    def __init__(self, program: Program, reach: Reach, makers: Makers) -> None:
        self._program, self._reach, self._makers = program, reach, makers

    def hazards(self) -> Iterator[Hazard]:
        for module, function in self._program.functions():
            if not self._program.is_cached(module.name, function) or self._program.is_not_served(module):
                continue
            if function.outer and not self._reach.runs_only_at_start(
                module, module.functions[function.outer]
            ):
                continue
            names = [self._program.decorator_name(module.name, path) for path in function.decorators]
            lines = zip(names, function.decorator_lines, strict=True)
            line = next((line for name, line in lines if CACHE_DECORATORS.search(name)), function.line)
            if function.owner and "staticmethod" not in names and function.params[:1] == ("self",):
                what = f"`{function.name}` is a method, and its results are cached for all instances"
                yield Hazard(module.path, line, "ISO007", what)
            elif self._depends_on_caller(module, function):
                what = f"`{function.name}` depends on who calls it, and its results are cached for all"
                yield Hazard(module.path, line, "ISO007", what)

    def _depends_on_caller(self, module: Module, function: Function, depth: int = MAX_CALL_DEPTH) -> bool:
        called = {call.path for call in function.calls}
        for path in [*called, *(read.path for read in function.reads)]:
            target = self._program.resolve(module.name, path, function.owner)
            if (target.kind == "ext" and CALLER_NAMES.search(target.name)) or self._is_context_value(target):
                return True
            if target.kind == "func" and not target.steps and depth and path in called:
                at = self._program.modules[target.module]
                if self._depends_on_caller(at, self._program.function(target.id), depth - 1):
                    return True
        return False

    def _is_context_value(self, target: Target) -> bool:
        """The content of a context variable or a thread-local depends on the caller."""
        if target.kind != "var" or not target.steps:
            return False
        return THREAD_LOCAL_CLASSES.search(self._makers.maker_of_variable(target)) is not None
