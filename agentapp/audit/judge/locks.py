"""The locks that are held at a place: taken by a ``with``, by all callers, or by a decorator."""

from __future__ import annotations

from functools import cached_property

from agentapp.audit.facts import ADMITS_SEVERAL, MODULE, STEP, Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.known_names import LOCK_CLASSES, looks_like_lock

NO_LOCKS: frozenset[str] = frozenset()
MAX_CALLER_DEPTH = 5  # how many levels of callers are followed
LOCKING_WORDS = ("synchronized", "locked", "lock")


class Locks:
    def __init__(self, program: Program, calls: Calls, reach: Reach) -> None:
        self._program, self._calls, self._reach = program, calls, reach
        self._held: dict[Id, frozenset[str]] = {}

    def held_at(self, module: Module, function: Function, paths: tuple[str, ...]) -> frozenset[str]:
        """All locks that are held at a place in a function which has taken the locks ``paths`` itself."""
        return self._held_by(module, function) | self.lock_names(module, function, paths)

    def lock_names(self, module: Module, function: Function, paths: tuple[str, ...]) -> frozenset[str]:
        found: set[str] = set()
        for path in paths:
            helper = self._helper(module, function, path)
            if helper is not None:
                found |= self.lock_names(*helper, helper[1].yielded_under)
            elif (name := self._name(module, function, path)) is not None:
                found.add(name)
        return frozenset(found)

    def _helper(self, module: Module, function: Function, path: str) -> tuple[Module, Function] | None:
        """The context manager function at this path, if it holds locks at its ``yield``."""
        if not path.endswith("|()"):
            return None
        owner = self._program.owner_of(module, function)
        id = self._program.function_at(module.name, path.removesuffix("|()"), owner)
        if id is None:
            return None
        facts = self._program.function(id)
        return (self._program.modules[id[0]], facts) if facts.yielded_under else None

    # -- held by callers and decorators

    def _held_by(self, module: Module, function: Function, depth: int = 0) -> frozenset[str]:
        """The locks that all callers of a function hold, or that a decorator takes for it."""
        id = (module.name, function.name)
        known = self._held.get(id)
        if known is not None:
            return known
        self._held[id] = NO_LOCKS
        taken = self._taken_by_decorators(module, function)
        if self._is_logging(module, function):
            taken |= {"logging.Handler.lock"}
        if id not in self._calls.passed_on and depth < MAX_CALLER_DEPTH:
            taken |= self._held_by_callers(id, depth)
        self._held[id] = taken
        return taken

    def _held_by_callers(self, id: Id, depth: int) -> frozenset[str]:
        common: frozenset[str] | None = None
        for caller, paths in self._calls.callers.get(id, ()):
            if caller in self._reach.reached:
                at, facts = self._program.modules[caller[0]], self._program.function(caller)
                held = self.lock_names(at, facts, paths) | self._held_by(at, facts, depth + 1)
                common = held if common is None else common & held
        return common or NO_LOCKS

    def _is_logging(self, module: Module, function: Function) -> bool:
        """`logging` holds the handler's lock around ``emit``."""
        if not function.name.endswith(".emit") or function.owner not in module.classes:
            return False
        bases = self._program.classes.outside_bases((module.name, function.owner))
        return any(base.endswith("Handler") for base in bases)

    def _taken_by_decorators(self, module: Module, function: Function) -> frozenset[str]:
        found = set()
        for path in function.decorators:
            target = self._program.resolve(module.name, path.removesuffix("|()"))
            if target.kind == "func":
                found |= self._taken_around(target, function)
                continue
            name = self._program.decorator_name(module.name, path)
            if any(word in name.rpartition(".")[2].lower() for word in LOCKING_WORDS):
                found.add(f"decorator {name}")
        return frozenset(found)

    def _taken_around(self, decorator: Target, function: Function) -> set[str]:
        """The locks that the wrapper of a decorator holds while it calls the decorated function."""
        home = self._program.modules[decorator.module]
        return {
            name
            for inner in home.functions.values()
            if inner.outer == decorator.name or inner.outer.startswith(f"{decorator.name}.")
            for call in inner.calls
            if call.path.startswith("f:") and call.path.count(STEP) == 0
            for path in call.locks
            if (name := self._own_lock(home, inner, path, function))
        }

    def _own_lock(self, home: Module, inner: Function, path: str, function: Function) -> str | None:
        """The name of a decorator's lock. If the decorator makes it, each decorated function has its own."""
        name = self._name(home, inner, path)
        if name and path.startswith("f:"):
            outer, _, variable = path.partition(STEP)[0][2:].rpartition(":")
            if variable not in home.functions[outer].params:
                return f"{name} for {function.name}"
        return name

    # -- names

    def _name(self, module: Module, function: Function, path: str) -> str | None:
        """The name that identifies a lock in the whole program; None if it is not a lock."""
        owner = function.owner or self._program.owner_of(module, function)
        target = self._program.resolve(module.name, path, owner)
        if target.kind == "ext" and target.name.endswith("()"):
            return None  # a new lock for each call, which nothing else can take
        target = self._lock_below(target)
        value = self._value(target)
        if value.endswith(f"#{ADMITS_SEVERAL}") or not (
            looks_like_lock(path) or self._is_made_as_lock(value, module)
        ):
            return None
        steps = tuple(step for step in target.steps if step not in ("()", "[]"))
        home = target.id
        if target.kind in ("self", "inst") and target.name in module.classes and steps:
            home = self._home_of(target.id, steps[0].strip("."))
        return f"{home[0]}.{home[1]}{''.join(steps)}"

    def _lock_below(self, target: Target) -> Target:
        """The lock that a condition was made with: to hold one is to hold the other."""
        if target.kind == "var" and not target.steps:
            return self._module_conditions.get(target.id, target)
        if target.kind == "self" and len(target.steps) == 1 and target.id in self._program.classes:
            for at in self._program.classes.bases(target.id):
                other = self._conditions.get((*at, target.steps[0][1:]))
                if other is not None:
                    return target._replace(steps=(f".{other}",))
        return target

    @cached_property
    def _module_conditions(self) -> dict[Id, Target]:
        found = {}
        for module in self._program.modules.values():
            for name, (value, line) in module.names.items():
                if value.endswith("Condition"):
                    for call in module.functions[MODULE].calls:
                        if (call.line, call.path) == (line, value[2:]) and call.args:
                            found[module.name, name] = self._program.resolve(module.name, call.args[0][1])
        return found

    @cached_property
    def _conditions(self) -> dict[tuple[str, str, str], str]:
        found = {}
        for module, function in self._program.functions():
            for write in function.writes:
                if function.owner and write.path.startswith("s|.") and write.value.endswith("Condition"):
                    for call in function.calls:
                        is_it = call.line == write.line and call.path == write.value[2:]
                        if is_it and call.args and call.args[0][1].startswith("s|."):
                            found[module.name, function.owner, write.path[3:]] = call.args[0][1][3:]
        return found

    def _home_of(self, id: Id, attribute: str) -> Id:
        """The class that makes the lock; its subclasses use the same lock."""
        classes = self._program.classes
        for at in reversed(classes.bases(id)):
            for function in self._program.modules[at[0]].functions.values():
                if function.owner == at[1] and any(w.path == f"s|.{attribute}" for w in function.writes):
                    return at
        found = classes.attribute(id, attribute)
        return found[0] if found else id

    def _value(self, target: Target) -> str:
        if target.kind == "var":
            return self._program.value_of(target)
        if target.kind == "self" and target.steps and target.id in self._program.classes:
            return self._program.classes.instance_values(target.id).get(target.steps[0][1:], "?")
        if target.kind == "cell":
            outer, _, variable = target.name.rpartition(":")
            return self._program.modules[target.module].functions[outer].locals.get(variable, "?")
        return "?"

    def _is_made_as_lock(self, value: str, module: Module) -> bool:
        if not value.startswith("C:"):
            return False
        made = self._program.resolve(module.name, value[2:])
        return made.kind == "ext" and LOCK_CLASSES.search(made.name) is not None
