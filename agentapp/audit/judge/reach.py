"""Which functions may run while requests are served, and which only before."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from agentapp.audit.facts import MAIN, MODULE, STEP, Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id
from agentapp.audit.known import (
    AT_IMPORT,
    COMMANDS,
    DECORATED,
    INITS,
    PLAIN,
    SCRIPTS,
    SET_UP,
    STARTING,
    STARTS,
)

METACLASSES = frozenset({"type", "ABCMeta", "abc.ABCMeta", "EnumMeta"})
FURTHEST = 3  # from a start to who is called by who is called by it


class Reach:
    def __init__(self, program: Program, calls: Calls) -> None:
        self._program, self._calls = program, calls
        self._making: dict[Id, bool] = {}

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
        """Those of whom one must be reached for this one to be; None if that does not depend on anybody."""
        module, function = self._program.modules[id[0]], self._program.function(id)
        last = last_name(function)
        if function.name in (MODULE, MAIN) or self._program.is_not_served(module):
            return []
        every = self._calls.callers_of(id)
        if last in AT_IMPORT:
            return every
        decorators = [self._program.decorator(module.name, path) for path in function.decorators]
        if self._is_start(id, last, decorators) or self._is_of_metaclass(module, function, last):
            return []
        callers = [caller for caller in every if not self._is_no_hint(id, caller)]
        at_import = [caller for caller in callers if caller[1] in (MODULE, MAIN)]
        if function.yields and at_import and not function.decorators:
            return None  # it only begins when somebody asks for the next
        if self._is_applied(module, function):
            return self._calls.callers_of((module.name, function.outer))
        if id in self._calls.mentioned or self._is_given_away(decorators):
            return None
        if self._is_private_setter(function, last):
            return self._calls.setters_of(last)
        if not callers:
            return [] if _registers(function) or _sets_up(function, last) else None
        loose = self._calls.loose.get(last, ()) if function.owner else ()
        others = [caller for caller in (*callers, *loose) if caller not in at_import and caller != id]
        return None if not others and not at_import else others

    def _is_start(self, id: Id, last: str, decorators: list[str]) -> bool:
        """Run once by a framework or by a person, not by a request."""
        if id in self._calls.starts or last in STARTS or "startup" in last:
            return True
        return any(
            STARTING.search(name) or (COMMANDS.search(name) and not name.startswith(("flask.", "bot.")))
            for name in decorators
        )

    def _is_given_away(self, decorators: list[str]) -> bool:
        """A decorator that is not known may keep the function, and have it called by anybody."""
        return any(name.rpartition(".")[2] not in PLAIN for name in decorators if name)

    def _is_no_hint(self, id: Id, caller: Id) -> bool:
        """Tests and commands of other modules also call what is made for everybody."""
        if caller[0] == id[0]:
            return False
        module, name = self._program.modules[caller[0]], caller[1].rpartition(".")[2]
        is_public = not id[1].rpartition(".")[2].startswith("_")
        parts = module.name.split(".")
        is_script = name in SCRIPTS or parts[-1] == "__main__" or "cli" in parts
        return is_public and (self._program.is_not_served(module) or (is_script and caller[1] != MODULE))

    def _is_of_metaclass(self, module: Module, function: Function, last: str) -> bool:
        if last not in ("__new__", "__init__") or function.owner not in module.classes:
            return False
        return bool(self._program.classes.outside_bases((module.name, function.owner)) & METACLASSES)

    def _is_applied(self, module: Module, function: Function) -> bool:
        """Whether it is the inner half of a decorator with arguments, and so runs when that is applied."""
        outer = module.functions.get(function.outer)
        if outer is None or f"d:{function.name}" not in outer.returns or not function.params:
            return False
        inside = any(other.outer == function.name for other in module.functions.values())
        return inside or f"p:{function.params[0]}" in function.returns

    def _is_private_setter(self, function: Function, last: str) -> bool:
        return last.startswith("_") and any(path.endswith(".setter") for path in function.decorators)

    # -- before anything is served

    def runs_before_serving(self, id: Id) -> bool:
        """At import or while the application is made; a script that serves nothing does not count."""
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
            or last_name(function) in STARTS - SCRIPTS
            or id in self._calls.starts
        ]
        for _ in range(FURTHEST):
            found.update(near)
            near = [callee for id in near for callee in callees.get(id, ()) if callee not in found]
        return found

    def is_made_once(self, module: Module, outer: Function) -> bool:
        """Whether the function runs when modules are imported or the application is made, and not later."""
        id = (module.name, outer.name)
        callers = self._calls.callers_of(id)
        if outer.outer and not callers:
            around = module.functions.get(outer.outer)
            is_given = around is not None and f"d:{outer.name}" in around.returns
            return around is not None and is_given and self.is_made_once(module, around)
        if id not in self.reached:
            return True
        return not callers and is_decorator(module, outer)

    def is_part_of_making(self, module: Module, function: Function, depth: int = 4) -> bool:
        """Whether nobody calls it but those who make the object."""
        id = (module.name, function.name)
        known = self._making.get(id)
        if known is None:
            self._making[id] = False
            callers = self._calls.callers_of(id)
            known = bool(callers) and id not in self._calls.mentioned and depth > 0
            known = self._making[id] = known and all(self._makes(caller, depth) for caller in callers)
        return known

    def _makes(self, id: Id, depth: int) -> bool:
        if id[1].rpartition(".")[2] in INITS or id[1] in (MODULE, MAIN):
            return True
        return self.is_part_of_making(self._program.modules[id[0]], self._program.function(id), depth - 1)


def last_name(function: Function) -> str:
    """Its own name, without those of what it is in."""
    return function.name.rpartition(".")[2].partition("@")[0]


def _sets_up(function: Function, last: str) -> bool:
    """By its name; but what is given a request is a view, whatever its name."""
    return bool(SET_UP.search(last)) and not function.is_async and "request" not in function.params


def _registers(function: Function) -> bool:
    """Nobody calls it here, and it gives back the function or class it is given, as decorators do."""
    own = function.params[1:] if function.owner else function.params
    return len(own) <= 2 and any(f"p:{name}" in function.returns and DECORATED.match(name) for name in own)


def is_decorator(module: Module, outer: Function) -> bool:
    """Whether something that it gives back calls what it was given."""
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
