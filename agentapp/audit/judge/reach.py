"""The functions that may run while requests are served, and those that only run before."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from agentapp.audit.facts import MAIN, MODULE, STEP, Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id
from agentapp.audit.known_names import (
    COMMAND_DECORATORS,
    CONSTRUCTION_METHODS,
    DECORATED_PARAMETERS,
    IMPORT_TIME_METHODS,
    SCRIPT_FUNCTIONS,
    SETUP_NAMES,
    STARTUP_DECORATORS,
    STARTUP_FUNCTIONS,
    TRANSPARENT_DECORATORS,
)

METACLASSES = frozenset({"type", "ABCMeta", "abc.ABCMeta", "EnumMeta"})
MAX_STARTUP_DEPTH = 3  # how many levels of calls are followed from a start-up function


class Reach:
    def __init__(self, program: Program, calls: Calls) -> None:
        self._program, self._calls = program, calls
        self._construction_answers: dict[Id, bool] = {}

    @cached_property
    def reached(self) -> set[Id]:
        """The functions that may run while requests are served."""
        found: set[Id] = set()
        left: list[Id] = []
        waiting: dict[Id, list[Id]] = defaultdict(list)
        for module, function in self._program.functions():
            id = (module.name, function.name)
            by = self._reached_by(id)
            if by is None:
                left.append(id)
            for caller in by or ():
                waiting[caller].append(id)
        while left:
            id = left.pop()
            if id not in found:
                found.add(id)
                left += waiting.get(id, ())
        return found

    def _reached_by(self, id: Id) -> list[Id] | None:
        """The functions through which this one is reached: one of them must be reached.

        None if it is always reached, an empty list if it never is.
        """
        module, function = self._program.modules[id[0]], self._program.function(id)
        last = last_name(function)
        if function.name in (MODULE, MAIN) or self._program.is_not_served(module):
            return []
        every = self._calls.callers_of(id)
        if last in IMPORT_TIME_METHODS:
            return every
        decorators = [self._program.decorator_name(module.name, path) for path in function.decorators]
        if self._is_start(id, last, decorators) or self._is_of_metaclass(module, function, last):
            return []
        callers = [caller for caller in every if not self._is_ignored_caller(id, caller)]
        at_import = [caller for caller in callers if caller[1] in (MODULE, MAIN)]
        if function.yields and at_import and not function.decorators:
            return None  # Its body runs later, when it is iterated.
        if self._is_inner_decorator(module, function):
            return self._calls.callers_of((module.name, function.outer))
        if id in self._calls.passed_on or self._may_be_kept_by_decorator(decorators):
            return None
        if self._is_private_setter(function, last):
            return self._calls.setters_of(last)
        if not callers:
            return [] if _returns_its_argument(function) or _is_setup_by_name(function, last) else None
        loose = self._calls.unresolved_methods.get(last, ()) if function.owner else ()
        others = [caller for caller in (*callers, *loose) if caller not in at_import and caller != id]
        return None if not others and not at_import else others

    def _is_start(self, id: Id, last: str, decorators: list[str]) -> bool:
        """Whether it is run once by a framework or from the command line, not by a request."""
        if id in self._calls.startup_functions or last in STARTUP_FUNCTIONS or "startup" in last:
            return True
        return any(
            STARTUP_DECORATORS.search(name)
            or (COMMAND_DECORATORS.search(name) and not name.startswith(("flask.", "bot.")))
            for name in decorators
        )

    def _may_be_kept_by_decorator(self, decorators: list[str]) -> bool:
        """An unknown decorator may store the function and let other code call it."""
        return any(name.rpartition(".")[2] not in TRANSPARENT_DECORATORS for name in decorators if name)

    def _is_ignored_caller(self, id: Id, caller: Id) -> bool:
        """Calls of a public function by tests and commands of other modules do not make it unreachable."""
        if caller[0] == id[0]:
            return False
        module, name = self._program.modules[caller[0]], caller[1].rpartition(".")[2]
        is_public = not id[1].rpartition(".")[2].startswith("_")
        parts = module.name.split(".")
        is_script = name in SCRIPT_FUNCTIONS or parts[-1] == "__main__" or "cli" in parts
        return is_public and (self._program.is_not_served(module) or (is_script and caller[1] != MODULE))

    def _is_of_metaclass(self, module: Module, function: Function, last: str) -> bool:
        if last not in ("__new__", "__init__") or function.owner not in module.classes:
            return False
        return bool(self._program.classes.outside_bases((module.name, function.owner)) & METACLASSES)

    def _is_inner_decorator(self, module: Module, function: Function) -> bool:
        """Whether it is the inner function of a decorator with arguments, which runs when that is applied."""
        outer = module.functions.get(function.outer)
        if outer is None or f"d:{function.name}" not in outer.returns or not function.params:
            return False
        inside = any(other.outer == function.name for other in module.functions.values())
        return inside or f"p:{function.params[0]}" in function.returns

    def _is_private_setter(self, function: Function, last: str) -> bool:
        return last.startswith("_") and any(path.endswith(".setter") for path in function.decorators)

    # -- before requests are served

    def runs_before_serving(self, id: Id) -> bool:
        """Whether it runs at import or while the application is made. Scripts do not count."""
        return id in self._before_serving

    @cached_property
    def _before_serving(self) -> set[Id]:
        callees: dict[Id, list[Id]] = defaultdict(list)
        for callee, callers in self._calls.callers.items():
            for caller, _ in callers:
                callees[caller].append(callee)
        found: set[Id] = set()
        near = [
            id
            for module, function in self._program.functions()
            if (id := (module.name, function.name))[1] == MODULE
            or last_name(function) in STARTUP_FUNCTIONS - SCRIPT_FUNCTIONS
            or id in self._calls.startup_functions
        ]
        for _ in range(MAX_STARTUP_DEPTH):
            found.update(near)
            near = [callee for id in near for callee in callees.get(id, ()) if callee not in found]
        return found

    def runs_only_at_start(self, module: Module, outer: Function) -> bool:
        """Whether the function runs only at import or while the application is made."""
        id = (module.name, outer.name)
        callers = self._calls.callers_of(id)
        if outer.outer and not callers:
            around = module.functions.get(outer.outer)
            is_given = around is not None and f"d:{outer.name}" in around.returns
            return around is not None and is_given and self.runs_only_at_start(module, around)
        if id not in self.reached:
            return True
        return not callers and is_decorator(module, outer)

    def is_part_of_construction(self, module: Module, function: Function, depth: int = 4) -> bool:
        """Whether it is called only during the construction of the object."""
        id = (module.name, function.name)
        known = self._construction_answers.get(id)
        if known is None:
            self._construction_answers[id] = False
            callers = self._calls.callers_of(id)
            known = bool(callers) and id not in self._calls.passed_on and depth > 0
            known = self._construction_answers[id] = known and all(
                self._constructs(caller, depth) for caller in callers
            )
        return known

    def _constructs(self, id: Id, depth: int) -> bool:
        if id[1].rpartition(".")[2] in CONSTRUCTION_METHODS or id[1] in (MODULE, MAIN):
            return True
        return self.is_part_of_construction(
            self._program.modules[id[0]], self._program.function(id), depth - 1
        )


def last_name(function: Function) -> str:
    """The name of the function without those of the class or functions that contain it."""
    return function.name.rpartition(".")[2].partition("@")[0]


def _is_setup_by_name(function: Function, last: str) -> bool:
    """Whether the name is that of set-up code. A function with a ``request`` parameter is a view."""
    return bool(SETUP_NAMES.search(last)) and not function.is_async and "request" not in function.params


def _returns_its_argument(function: Function) -> bool:
    """Whether it returns the function or class that it was given, as a registering decorator does."""
    own = function.params[1:] if function.owner else function.params
    return len(own) <= 2 and any(
        f"p:{name}" in function.returns and DECORATED_PARAMETERS.match(name) for name in own
    )


def is_decorator(module: Module, outer: Function) -> bool:
    """Whether it returns a function that calls its argument."""
    if not any(path.startswith("d:") for path in outer.returns):
        return False
    for inner in module.functions.values():
        if inner.outer == outer.name or inner.outer.startswith(f"{outer.name}."):
            for call in inner.calls:
                if call.path.startswith("f:") and call.path.count(STEP) == 0:
                    home = call.path[2:].rpartition(":")[0]
                    if call.path.startswith(f"f:{outer.name}") or f"d:{home}" in outer.returns:
                        return True
    return False
