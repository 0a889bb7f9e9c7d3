"""All modules together: what a path leads to, and which functions a request can reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from agentapp.audit.facts import MAIN, MODULE, STEP, Class, Function, Module
from agentapp.audit.known import (
    AT_IMPORT,
    CACHES,
    COMMANDS,
    DECORATED,
    LOCKS,
    NOT_SERVED,
    PLAIN,
    SET_UP,
    STARTED_BY,
    STARTING,
    STARTS,
    is_lockish,
)

DEEPEST = 12
MOST_ALIASES = 60

Id = tuple[str, str]  # a module's name and that of something in it


class Target(NamedTuple):
    """What a path leads to.

    ``kind`` is ``module``, ``var`` (a name of a module), ``class``, ``func``, ``inst`` (a new instance
    of a class), ``self`` and ``cls`` (of the class it is in), ``param``, ``cell`` (a variable of an
    enclosing function), ``cached`` (what a cached function gives), or ``ext`` (not of this program).
    """

    kind: str
    module: str
    name: str
    steps: tuple[str, ...] = ()
    of: Target | None = None  # the object a method belongs to

    @property
    def id(self) -> Id:
        return self.module, self.name


NOWHERE = Target("ext", "", "")


class Program:
    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self._found: dict[tuple[str, ...], Target] = {}
        self._looking: set[tuple[str, ...]] = set()
        self._giving: set[Id] = set()
        self._bases: dict[Id, list[Id]] = {}
        self._called: dict[tuple[str, str, str], list[Id]] = {}
        self._not_served = {
            name for name, module in self.modules.items() if NOT_SERVED.search(place_of(module))
        }

    # -- things

    def function(self, id: Id) -> Function:
        return self.modules[id[0]].functions[id[1]]

    def class_(self, id: Id) -> Class:
        return self.modules[id[0]].classes[id[1]]

    def functions(self) -> Iterator[tuple[Module, Function]]:
        for module in self.modules.values():
            for function in module.functions.values():
                yield module, function

    def bases(self, id: Id) -> list[Id]:
        """The class and those it is made from, as far as they are in the program."""
        known = self._bases.get(id)
        if known is not None:
            return known
        found: list[Id] = self._bases.setdefault(id, [])
        left = [id]
        while left and len(found) < 20:
            at = left.pop(0)
            if at in found:
                continue
            found.append(at)
            for base in self.class_(at).bases:
                target = self.resolve(at[0], base)
                if target.kind == "class" and not target.steps:
                    left.append(target.id)
        return found

    @cached_property
    def subclasses(self) -> dict[Id, list[Id]]:
        found: dict[Id, list[Id]] = defaultdict(list)
        for module in self.modules.values():
            for name in module.classes:
                for base in self.bases((module.name, name))[1:]:
                    found[base].append((module.name, name))
        return found

    def outside_bases(self, id: Id) -> set[str]:
        """The names of those that are not in the program."""
        found = set()
        for at in self.bases(id):
            class_ = self.class_(at)
            for base in class_.bases:
                target = self.resolve(at[0], base.split("|[]")[0])
                if target.kind == "ext":
                    found.add(target.name)
        return found

    def method(self, id: Id, name: str) -> Id | None:
        for module, class_ in self.bases(id):
            if name in self.class_((module, class_)).methods:
                return module, f"{class_}.{name}"
        return None

    def attribute(self, id: Id, name: str) -> tuple[Id, tuple[str, int, bool]] | None:
        """Where in the class or below it a class attribute is set."""
        for at in self.bases(id):
            found = self.class_(at).attributes.get(name)
            if found is not None:
                return at, found
        return None

    # -- paths

    def resolve(self, module: str, path: str, owner: str = "") -> Target:
        """``owner`` is the class of the method that the path is in."""
        key = (module, path) if path[1:2] == ":" else (module, path, owner)
        known = self._found.get(key)
        if known is None:
            if key in self._looking or len(self._looking) > MOST_ALIASES:
                return NOWHERE
            self._looking.add(key)
            known = self._found[key] = self._resolve(module, path, owner)
            self._looking.discard(key)
        return known

    def _resolve(self, module: str, path: str, owner: str) -> Target:
        root, *steps = path.split(STEP)
        kind, _, name = root.partition(":")
        if kind == "g":
            start = self.named(module, name)
        elif kind == "d":
            start = Target("func", module, name)
        elif kind == "k":
            start = Target("class", module, name)
        elif kind == "s":
            start = Target("self", module, owner)
        elif kind == "c":
            start = Target("class", module, owner) if owner else NOWHERE
        elif kind == "p":
            start = Target("param", module, name)
        elif kind == "f":
            start = Target("cell", module, name)
        else:
            start = NOWHERE
        return self.follow(start, tuple(steps))

    def named(self, module: str, name: str, depth: int = 0) -> Target:
        found = self.modules.get(module)
        if found is None or depth > DEEPEST:
            return Target("ext", "", f"{module}.{name}")
        if name in found.functions and name not in (MODULE, MAIN) and "." not in name:
            return Target("func", module, name)
        if name in found.classes and "." not in name:
            return Target("class", module, name)
        if name in found.imports:
            base, what = found.imports[name]
            if not what:
                return Target("module", base, "") if self._has(base) else Target("ext", "", base)
            if self._has(f"{base}.{what}") and not (
                base in self.modules and what in self.modules[base].names
            ):
                return Target("module", f"{base}.{what}", "")
            if base in self.modules:
                return self.named(base, what, depth + 1)
            return Target("ext", "", f"{base}.{what}")
        if name in found.names:
            value = found.names[name][0]
            if value.startswith("P:") and depth < DEEPEST and root_name(value) != name:
                target = self.resolve(module, value[2:])
                if target.kind != "ext" or target.name:
                    return target
            return Target("var", module, name)
        for star in found.stars:
            if star in self.modules:
                target = self.named(star, name, depth + 1)
                if target.kind != "ext":
                    return target
        return Target("ext", "", name)

    def _has(self, module: str) -> bool:
        return module in self.modules or module in self._packages

    @cached_property
    def _packages(self) -> set[str]:
        """Also those without a file of their own."""
        found: set[str] = set()
        for name in self.modules:
            parts = name.split(".")
            found.update(".".join(parts[:n]) for n in range(1, len(parts)))
        return found

    def follow(self, target: Target, steps: tuple[str, ...], depth: int = 0) -> Target:
        while steps and depth < DEEPEST:
            step, rest = steps[0], steps[1:]
            depth += 1
            match target.kind:
                case "module":
                    if not step.startswith("."):
                        return NOWHERE
                    below = f"{target.module}{step}"
                    named = self.named(target.module, step[1:])
                    target = (
                        named if named.kind != "ext" or not self._has(below) else Target("module", below, "")
                    )
                case "func" if step == "()" and not target.steps:
                    target = self._result(target, target.of)
                case "func":
                    return target._replace(steps=plain((*target.steps, *steps)))
                case "class" if not target.steps and step == "()":
                    target = Target("inst", *target.id)
                case "class" | "inst" | "self" if not target.steps and step.startswith("."):
                    found = self._member(target, step)
                    if found is None:
                        return target._replace(steps=plain(steps))
                    target = found
                case "var" if (
                    not target.steps and (of := self.class_of(target)) is not None and step[0] == "."
                ):
                    method = self.method(of, step[1:])
                    if method is None or self._is_kept_property(method):
                        return target._replace(steps=plain(steps))
                    if self._is_property(method):
                        target = self._result(Target("func", *method), target)
                    else:
                        target = Target("func", *method, of=target)
                case "ext":
                    if not target.name:
                        return NOWHERE
                    target = Target("ext", "", target.name + step)
                case _:
                    return target._replace(steps=plain((*target.steps, *steps)))
            steps = rest
        return target

    def _member(self, target: Target, step: str) -> Target | None:
        if target.module not in self.modules or target.name not in self.modules[target.module].classes:
            return None
        method = self.method(target.id, step[1:])
        if method is None or (target.kind != "class" and self._is_kept_property(method)):
            return None
        if target.kind != "class" and self._is_property(method):
            return self._result(Target("func", *method), of=target)
        return Target("func", *method, of=target)

    def _is_property(self, id: Id) -> bool:
        return any(path.endswith("property") for path in self.function(id).decorators)

    def _is_kept_property(self, id: Id) -> bool:
        """Its result becomes an attribute."""
        return any(path.endswith("cached_property") for path in self.function(id).decorators)

    def _result(self, target: Target, of: Target | None = None) -> Target:
        """What a function gives, if that is something that was there before."""
        if target.id[1] not in self.modules[target.module].functions:
            return NOWHERE
        function = self.function(target.id)
        if self.is_cached(target.module, function):
            return Target("cached", target.module, function.name)
        if target.id in self._giving:
            return NOWHERE
        self._giving.add(target.id)
        try:
            return self._given(target, function, of)
        finally:
            self._giving.discard(target.id)

    def _given(self, target: Target, function: Function, of: Target | None) -> Target:
        found = NOWHERE
        for path in function.returns:
            if path[0] == "s" and of is not None:
                found = self.follow(of, tuple(path.split(STEP)[1:]), DEEPEST - 3)
            elif path[0] == "g":
                found = self.resolve(target.module, path)
            elif path[0] in "cs" and function.owner:
                found = self._resolve(target.module, path, function.owner)
            else:
                continue
            if found.kind in ("var", "class", "cached", "self", "inst"):
                return found
        return found if found.kind != "self" else NOWHERE

    def is_cached(self, module: str, function: Function) -> bool:
        return any(CACHES.search(self.decorator(module, path)) for path in function.decorators)

    def decorator(self, module: str, path: str) -> str:
        """Its name, with the module in front, whether called or not."""
        target = self.resolve(module, path.removesuffix("|()"))
        if target.kind == "ext":
            return target.name
        dotted = ".".join((target.module, target.name, *(step.strip(".") for step in target.steps)))
        return dotted

    def class_of(self, target: Target) -> Id | None:
        """Of which class of the program a module's variable is an instance."""
        if target.kind == "inst":
            return target.id
        if target.kind != "var":
            return None
        value = self.modules[target.module].names[target.name][0]
        made = self.made(target.module, value)
        if made is not None:
            return made
        return self._set_later.get(target.id)

    def made(self, module: str, value: str, owner: str = "") -> Id | None:
        """The class of the program whose instance a value is."""
        if not value.startswith("C:"):
            return None
        target = self.resolve(module, value[2:].partition("#")[0], owner)
        if target.kind == "class" and not target.steps:
            return target.id
        if target.kind == "func":
            result = self._result(target)
            if result.kind == "inst" and not result.steps:
                return result.id
        return None

    @cached_property
    def _set_later(self) -> dict[Id, Id]:
        """Variables that get an instance from a function: ``global x; x = Agent()``."""
        found: dict[Id, Id] = {}
        for module, function in self.functions():
            for write in function.writes:
                if write.how == "rebind" and write.path[:2] == "g:" and write.value[:2] == "C:":
                    target = self.resolve(module.name, write.value[2:], function.owner)
                    if target.kind == "class" and not target.steps:
                        found[module.name, write.path[2:]] = target.id
        return found

    # -- who calls whom

    @cached_property
    def callers(self) -> dict[Id, list[tuple[Id, tuple[str, ...]]]]:
        """Of every function: who calls it, and which locks that one holds then."""
        found: dict[Id, list[tuple[Id, tuple[str, ...]]]] = defaultdict(list)
        for module, function in self.functions():
            me = module.name, function.name
            for call in function.calls:
                for callee in self.called(module.name, call.path, function.owner):
                    found[callee].append((me, call.locks))
            where = (module.name, function.outer or MODULE)
            for path in function.decorators:
                for callee in self.called(module.name, path.removesuffix("|()"), function.owner):
                    found[callee].append((where, ()))
        for module in self.modules.values():
            for class_ in module.classes.values():
                for path in class_.decorators:
                    for callee in self.called(module.name, path.removesuffix("|()"), ""):
                        found[callee].append(((module.name, class_.outer or MODULE), ()))
        return found

    def called(self, module: str, path: str, owner: str) -> list[Id]:
        """The functions of the program that are run when this is called."""
        key = (module, path, owner)
        known = self._called.get(key)
        if known is None:
            known = self._called[key] = self._calls(module, path, owner)
        return known

    def _calls(self, module: str, path: str, owner: str) -> list[Id]:
        if path.startswith("s|.") and path.count(STEP) == 1 and owner:
            name = path[3:]
            found = self.method((module, owner), name) if owner in self.modules[module].classes else None
            return [found] if found else []
        target = self.resolve(module, path, owner)
        if target.kind == "func" and not target.steps:
            return [target.id]
        if target.kind == "class" and not target.steps:
            made = (self.method(target.id, name) for name in ("__init__", "__new__", "__post_init__"))
            return [each for each in made if each]
        if (target.kind == "var" and target.steps == ("()",)) or (target.kind == "var" and not target.steps):
            of = self.class_of(target._replace(steps=()))
            method = self.method(of, "__call__") if of else None
            return [method] if method else []
        return []

    @cached_property
    def loose(self) -> set[str]:
        """The names of methods that are called on something that is not known, and not at import."""
        found = set()
        for module, function in self.functions():
            if function.name in (MODULE, MAIN) or self.is_not_served(module):
                continue
            for call in function.calls:
                last = call.path.rpartition(STEP)[2]
                if last.startswith(".") and not self.called(module.name, call.path, function.owner):
                    found.add(last[1:])
        return found

    @cached_property
    def mentioned(self) -> set[Id]:
        """Functions that are passed on or kept: whoever has them may call them, at any time."""
        found = set()
        for module, function in self.functions():
            for path in function.mentions:
                target = self.resolve(module.name, path, function.owner)
                if target.kind == "func" and not target.steps:
                    found.add(target.id)
        return found

    @cached_property
    def starts(self) -> set[Id]:
        """Functions that a framework is told to run once, before it serves or after."""
        found = set()
        for module, function in self.functions():
            for call in function.calls:
                told = STARTED_BY.search(call.path) is not None
                for where, path in call.args:
                    if told or where in ("lifespan", "on_startup", "on_shutdown", "startup"):
                        target = self.resolve(module.name, path, function.owner)
                        if target.kind == "func" and not target.steps:
                            found.add(target.id)
        return found

    def is_not_served(self, module: Module) -> bool:
        """Tests, scripts, set-up: no request gets there."""
        return module.name in self._not_served

    @cached_property
    def reached(self) -> set[Id]:
        """The functions that may run while requests are served."""
        known: dict[Id, bool] = {}
        for module, function in self.functions():
            self._reaches((module.name, function.name), known, 0)
        return {id for id, reached in known.items() if reached}

    def _reaches(self, id: Id, known: dict[Id, bool], depth: int) -> bool:
        if id in known:
            return known[id]
        known[id] = False  # whoever is reached only by itself is not
        known[id] = depth < 200 and self._is_reached(id, known, depth)
        return known[id]

    def _is_reached(self, id: Id, known: dict[Id, bool], depth: int) -> bool:
        module, function = self.modules[id[0]], self.function(id)
        last = function.name.rpartition(".")[2].partition("@")[0]
        if function.name in (MODULE, MAIN) or self.is_not_served(module):
            return False
        if last in AT_IMPORT:
            callers = [caller for caller, _ in self.callers.get(id, ()) if caller[1] not in (MODULE, MAIN)]
            return any(self._reaches(caller, known, depth + 1) for caller in callers)
        decorators = [self.decorator(module.name, path) for path in function.decorators]
        if (
            id in self.starts
            or last in STARTS
            or "startup" in last
            or any(STARTING.search(name) for name in decorators)
        ):
            return False
        if self._is_command(module, function, decorators) or self._is_of_metaclass(module, function, last):
            return False
        callers = [caller for caller, _ in self.callers.get(id, ()) if not self._is_no_hint(id, caller)]
        at_import = [caller for caller in callers if caller[1] in (MODULE, MAIN)]
        if function.yields and at_import and not function.decorators:
            return True  # it only begins when somebody asks for the next
        if function.outer and self._is_applied(module, function, known, depth):
            return False
        if any(name.rpartition(".")[2] not in PLAIN for name in decorators if name):
            return True
        if id in self.mentioned:
            return True
        if function.owner and last in self.loose and not (last.startswith("__") and last.endswith("__")):
            return True
        if not callers:
            return not self._registers(function) and not (SET_UP.search(last) and not function.is_async)
        others = [caller for caller in callers if caller not in at_import and caller != id]
        if not others and at_import:
            return False
        return any(self._reaches(caller, known, depth + 1) for caller in others) if others else True

    def _is_no_hint(self, id: Id, caller: Id) -> bool:
        """Tests and commands of other modules also call what is made for everybody."""
        if caller[0] == id[0]:
            return False
        module, name = self.modules[caller[0]], caller[1].rpartition(".")[2]
        is_public = not id[1].rpartition(".")[2].startswith("_")
        is_script = name in ("main", "cli") or module.name.rpartition(".")[2] in ("__main__", "cli")
        return is_public and (self.is_not_served(module) or (is_script and caller[1] != MODULE))

    def _is_command(self, module: Module, function: Function, decorators: list[str]) -> bool:
        return any(COMMANDS.search(name) and not name.startswith(("flask.", "bot.")) for name in decorators)

    def _is_of_metaclass(self, module: Module, function: Function, last: str) -> bool:
        if last not in ("__new__", "__init__") or not function.owner:
            return False
        if function.owner not in module.classes:
            return False
        outside = self.outside_bases((module.name, function.owner))
        return bool(outside & {"type", "ABCMeta", "abc.ABCMeta", "EnumMeta"})

    def _is_applied(self, module: Module, function: Function, known: dict[Id, bool], depth: int) -> bool:
        """Whether it is the inner half of a decorator with arguments, and so runs when that is applied."""
        outer = module.functions.get(function.outer)
        if outer is None or f"d:{function.name}" not in outer.returns or not function.params:
            return False
        inside = any(other.outer == function.name for other in module.functions.values())
        gives_back = any(path == f"p:{function.params[0]}" for path in function.returns)
        if not inside and not gives_back:
            return False
        callers = [caller for caller, _ in self.callers.get((module.name, outer.name), ())]
        return not any(
            self._reaches(caller, known, depth + 1) for caller in callers if caller[1] not in (MODULE, MAIN)
        )

    def _registers(self, function: Function) -> bool:
        """Nobody calls it here, and it gives back the function or class it is given, as decorators do."""
        own = function.params[1:] if function.owner else function.params
        return len(own) <= 2 and any(
            f"p:{name}" in function.returns and DECORATED.match(name) for name in own
        )

    # -- locks

    def lock(self, module: Module, function: Function, path: str) -> str | None:
        """How a lock is called in the whole program; None if it is none."""
        owner = function.owner or self.owner_of(module, function)
        target = self.resolve(module.name, path, owner)
        if target.kind == "ext" and target.name.endswith("()"):
            return None  # one that nobody else has
        target = self._lock_below(target)
        steps = tuple(step for step in target.steps if step not in ("()", "[]"))
        if target.kind in ("self", "inst") and target.name in module.classes and steps:
            at = self._home_of(target.id, steps[0].strip("."))
            name = f"{at[0]}.{at[1]}{''.join(steps)}"
        else:
            name = f"{target.module}.{target.name}{''.join(steps)}"
        return name if is_lockish(path) or self._is_made_lock(target, module, function, path) else None

    def _lock_below(self, target: Target) -> Target:
        """A condition may be made with a lock: whoever has the one has the other."""
        if (
            target.kind == "self"
            and len(target.steps) == 1
            and target.name in self.modules[target.module].classes
        ):
            for at in self.bases(target.id):
                other = self._conditions.get((*at, target.steps[0][1:]))
                if other is not None:
                    return target._replace(steps=(f".{other}",))
        return target

    @cached_property
    def _conditions(self) -> dict[tuple[str, str, str], str]:
        found = {}
        for module, function in self.functions():
            for write in function.writes:
                if function.owner and write.path.startswith("s|.") and write.value.endswith("Condition"):
                    for call in function.calls:
                        is_it = call.line == write.line and call.path == write.value[2:]
                        if is_it and call.args and call.args[0][1].startswith("s|."):
                            found[module.name, function.owner, write.path[3:]] = call.args[0][1][3:]
        return found

    def _home_of(self, id: Id, attribute: str) -> Id:
        for at in reversed(self.bases(id)):
            for function in self.modules[at[0]].functions.values():
                if function.owner == at[1] and any(w.path == f"s|.{attribute}" for w in function.writes):
                    return at
        found = self.attribute(id, attribute)
        return found[0] if found else id

    def _is_made_lock(self, target: Target, module: Module, function: Function, path: str) -> bool:
        value = "?"
        if target.kind == "var":
            value = self.modules[target.module].names[target.name][0]
        elif target.kind == "self" and target.steps:
            value = self.instance_values((target.module, target.name)).get(target.steps[0][1:], "?")
        elif target.kind == "cell":
            outer, _, variable = target.name.rpartition(":")
            value = self.modules[target.module].functions[outer].locals.get(variable, "?")
        if not value.startswith("C:"):
            return False
        made = self.resolve(module.name, value[2:])
        return made.kind == "ext" and LOCKS.search(made.name) is not None

    def owner_of(self, module: Module, function: Function) -> str:
        """The class whose ``self`` a function sees, also one inside a method."""
        while function.outer and not function.owner:
            outer = module.functions.get(function.outer)
            if outer is None:
                break
            function = outer
        return function.owner

    def instance_values(self, id: Id) -> dict[str, str]:
        """What the methods of a class and of its bases bind to attributes of ``self``."""
        known = self._instance_values.get(id)
        if known is None:
            known = {}
            for at in self.bases(id):
                for name, value in self._own_values.get(at, {}).items():
                    known.setdefault(name, value)
            self._instance_values[id] = known
        return known

    @cached_property
    def _instance_values(self) -> dict[Id, dict[str, str]]:
        return {}

    @cached_property
    def _own_values(self) -> dict[Id, dict[str, str]]:
        found: dict[Id, dict[str, str]] = defaultdict(dict)
        for module, function in self.functions():
            if function.owner:
                for write in function.writes:
                    if write.how == "attr" and write.path.startswith("s|.") and write.path.count(STEP) == 1:
                        mine = found[module.name, function.owner]
                        name = write.path[3:]
                        if "?NKTPCM".find(write.value[0]) > "?NKTPCM".find(mine.get(name, "-")[0]):
                            mine[name] = write.value
        return found


def plain(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Without the copies on the way: what is in a copy is what is in the original."""
    return tuple(step for n, step in enumerate(steps) if step != "~" or n == len(steps) - 1)


def place_of(module: Module) -> str:
    """The module's path below the directory it is imported from: what is above says nothing about it."""
    return module.name.replace(".", "/") + ("/__init__.py" if module.is_package else ".py")


def root_name(value: str) -> str:
    return value[2:].partition(STEP)[0].partition(":")[2]
