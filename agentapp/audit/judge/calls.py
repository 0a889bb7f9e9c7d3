"""The call graph, as far as the paths of the calls can be resolved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from agentapp.audit.facts import MAIN, MODULE, STEP
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id
from agentapp.audit.known_names import STARTUP_REGISTRATIONS

CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
STARTUP_ARGUMENTS = frozenset({"lifespan", "on_startup", "on_shutdown", "startup"})


class Calls:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._called: dict[tuple[str, str, str], list[Id]] = {}

    @cached_property
    def callers(self) -> dict[Id, list[tuple[Id, tuple[str, ...]]]]:
        """The callers of each function, each with the locks that it holds at the call."""
        found: dict[Id, list[tuple[Id, tuple[str, ...]]]] = defaultdict(list)
        for module, function in self._program.functions():
            me = module.name, function.name
            for call in function.calls:
                for callee in self.find_callees(module.name, call.path, function.owner):
                    found[callee].append((me, call.locks))
            where = (module.name, function.outer or MODULE)
            for path in function.decorators:
                for callee in self._callees_of_decorator(module.name, path, function.owner):
                    found[callee].append((where, ()))
        for module in self._program.modules.values():
            for class_ in module.classes.values():
                for path in class_.decorators:
                    for callee in self._callees_of_decorator(module.name, path, ""):
                        found[callee].append(((module.name, class_.outer or MODULE), ()))
        return found

    def _callees_of_decorator(self, module: str, decorator: str, owner: str) -> Iterator[Id]:
        """The functions that run when a decorator is applied.

        A decorator class with arguments is made and then called, so its ``__call__`` runs too.
        """
        path = decorator.removesuffix("|()")
        yield from self.find_callees(module, path, owner)
        target = self._program.resolve(module, path, owner)
        if path != decorator and target.kind == "class" and not target.steps:
            call = self._program.classes.method(target.id, "__call__")
            if call is not None:
                yield call

    def callers_of(self, id: Id) -> list[Id]:
        return [caller for caller, _ in self.callers.get(id, ())]

    def find_callees(self, module: str, path: str, owner: str) -> list[Id]:
        """The functions of the program that a call of this path runs."""
        key = (module, path, owner)
        known = self._called.get(key)
        if known is None:
            known = self._called[key] = [each for each in self._find_callees(module, path, owner) if each]
        return known

    def _find_callees(self, module: str, path: str, owner: str) -> list[Id | None]:
        program = self._program
        classes = program.classes
        if path.startswith("s|.") and path.count(STEP) == 1 and owner:
            if (module, owner) not in classes:
                return []
            return [classes.method((module, owner), path[3:]), *classes.overridden((module, owner), path[3:])]
        target = program.resolve(module, path, owner)
        if target.kind == "func" and not target.steps:
            return [target.id]
        if target.kind == "class" and not target.steps:
            return [classes.method(target.id, name) for name in CONSTRUCTORS]
        if target.kind == "var" and target.steps in ((), ("()",)):
            of = program.class_of(target._replace(steps=()))
            return [classes.method(of, "__call__")] if of else []
        return []

    @cached_property
    def unresolved_methods(self) -> dict[str, list[Id]]:
        """The callers of methods on unknown objects, by the name of the method, without calls at import.

        Special methods are left out: a call of them on some unknown object exists in every program.
        """
        found: dict[str, list[Id]] = defaultdict(list)
        for module, function in self._program.functions():
            if function.name in (MODULE, MAIN) or self._program.is_not_served(module):
                continue
            for call in function.calls:
                last = call.path.rpartition(STEP)[2]
                is_method = last.startswith(".") and not last.startswith(".__")
                if is_method and not self.find_callees(module.name, call.path, function.owner):
                    found[last[1:]].append((module.name, function.name))
        return found

    def setters_of(self, attribute: str) -> list[Id]:
        """The functions that assign to an attribute of that name, on any object."""
        return self._setters.get(f".{attribute}", [])

    @cached_property
    def _setters(self) -> dict[str, list[Id]]:
        found: dict[str, list[Id]] = defaultdict(list)
        for module, function in self._program.functions():
            for write in function.writes:
                if write.how == "attr":
                    found[write.path.rpartition(STEP)[2]].append((module.name, function.name))
        return found

    @cached_property
    def passed_on(self) -> set[Id]:
        """Functions that are passed on or stored: other code may call them at any time."""
        found = {
            self._program.function_at(module.name, path, function.owner)
            for module, function in self._program.functions()
            for path in function.mentions
        }
        return {id for id in found if id is not None}

    @cached_property
    def startup_functions(self) -> set[Id]:
        """Functions that are registered with a framework to run once at start-up or shutdown."""
        found = set()
        for module, function in self._program.functions():
            for call in function.calls:
                told = STARTUP_REGISTRATIONS.search(call.path) is not None
                for where, path in call.args:
                    if told or where in STARTUP_ARGUMENTS:
                        found.add(self._program.function_at(module.name, path, function.owner))
        return {id for id in found if id is not None}
