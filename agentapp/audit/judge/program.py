"""The whole program: resolves a path in one module to a target in any module."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from agentapp.audit.facts import INJECTED, MAIN, MODULE, STEP, Function, Module
from agentapp.audit.judge.classes import Classes
from agentapp.audit.judge.targets import UNKNOWN, Id, Target, simplify_steps
from agentapp.audit.known_names import CACHE_DECORATORS, NOT_SERVED_PATHS

MAX_DEPTH = 12  # how many imports or steps are followed for one path
MAX_OPEN_LOOKUPS = 60  # how many lookups may be nested
CONTEXT_STEPS = frozenset({(".__enter__", "()"), (".__aenter__", "()")})


class Program:
    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self.classes = Classes(self.modules, self.resolve)
        self._resolved: dict[tuple[str, ...], Target] = {}
        self._in_progress: set[tuple[str, ...]] = set()
        self._resolving_results: set[Id] = set()
        self._not_served = {
            name for name, module in self.modules.items() if NOT_SERVED_PATHS.search(_place_of(module))
        }

    # -- functions

    def function(self, id: Id) -> Function:
        return self.modules[id[0]].functions[id[1]]

    def functions(self) -> list[tuple[Module, Function]]:
        return self._functions

    @cached_property
    def _functions(self) -> list[tuple[Module, Function]]:
        return [
            (module, function) for module in self.modules.values() for function in module.functions.values()
        ]

    def is_not_served(self, module: Module) -> bool:
        """Whether it is a test, a script or set-up code, which no request reaches."""
        return module.name in self._not_served

    def owner_of(self, module: Module, function: Function) -> str:
        """The class of the method, also for a function that is defined inside the method."""
        while function.outer and not function.owner:
            outer = module.functions.get(function.outer)
            if outer is None:
                break
            function = outer
        return function.owner

    def decorator_name(self, module: str, path: str) -> str:
        """The qualified name of a decorator, with or without arguments."""
        target = self.resolve(module, path.removesuffix("|()"))
        if target.kind == "var" and not target.steps and (value := self.value_of(target)).startswith("C:"):
            made = self.resolve(target.module, value[2:])  # ``memo = lru_cache(maxsize=8)``
            target = made if made.kind == "ext" else target
        if target.kind == "ext":
            return target.name
        return ".".join((target.module, target.name, *(step.strip(".") for step in target.steps)))

    def is_cached(self, module: str, function: Function) -> bool:
        return any(CACHE_DECORATORS.search(self.decorator_name(module, path)) for path in function.decorators)

    # -- paths

    def function_at(self, module: str, path: str, owner: str = "") -> Id | None:
        """The function of the program that a path leads to, if any."""
        target = self.resolve(module, path, owner)
        return target.id if target.kind == "func" and not target.steps else None

    def resolve(self, module: str, path: str, owner: str = "") -> Target:
        """Find the target of a path. ``owner`` is the class of the method that contains the path."""
        key = (module, path) if path[1:2] == ":" else (module, path, owner)
        known = self._resolved.get(key)
        if known is None:
            if key in self._in_progress or len(self._in_progress) > MAX_OPEN_LOOKUPS:
                return UNKNOWN
            self._in_progress.add(key)
            known = self._resolved[key] = self._resolve(module, path, owner)
            self._in_progress.discard(key)
        return known

    def _resolve(self, module: str, path: str, owner: str) -> Target:
        root, *steps = path.split(STEP)
        return self.follow(self._resolve_root(module, root, owner), tuple(steps))

    def _resolve_root(self, module: str, root: str, owner: str) -> Target:
        kind, _, name = root.partition(":")
        match kind:
            case "g":
                return self.resolve_name(module, name) if name else Target("module", module, "")
            case "d":
                return Target("func", module, name)
            case "k":
                return Target("class", module, name)
            case "s":
                return Target("self", module, owner)
            case "c" if owner:
                return Target("class", module, owner)
            case "p":
                return Target("param", module, name)
            case "f":
                return Target("cell", module, name)
        return UNKNOWN

    def resolve_name(self, module: str, name: str, depth: int = 0) -> Target:
        found = self.modules.get(module)
        if found is None or depth > MAX_DEPTH:
            return Target("ext", "", f"{module}.{name}")
        if name in found.functions and name not in (MODULE, MAIN) and "." not in name:
            return Target("func", module, name)
        if name in found.classes and "." not in name:
            return Target("class", module, name)
        if name in found.imports:
            base, what = found.imports[name]
            return self._resolve_import(self._locate_import(module, base), what, depth)
        if name in found.names:
            return self._resolve_variable(found, name, depth)
        for star in found.stars:
            star = self._locate_import(module, star)
            if star in self.modules:
                target = self.resolve_name(star, name, depth + 1)
                if target.kind != "ext":
                    return target
        return Target("ext", "", name)

    def _locate_import(self, module: str, base: str) -> str:
        """The module that an import means. It may start in any directory above that is not a package."""
        if self._has_module(base):
            return base
        above = module.rpartition(".")[0]
        while above:
            if above not in self.modules and self._has_module(f"{above}.{base}"):
                return f"{above}.{base}"
            above = above.rpartition(".")[0]
        return base

    def _resolve_import(self, base: str, what: str, depth: int) -> Target:
        if not what:
            return Target("module", base, "") if self._has_module(base) else Target("ext", "", base)
        is_name = base in self.modules and what in self.modules[base].names
        if self._has_module(f"{base}.{what}") and not is_name:
            return Target("module", f"{base}.{what}", "")
        if base in self.modules:
            return self.resolve_name(base, what, depth + 1)
        return Target("ext", "", f"{base}.{what}")

    def _resolve_variable(self, module: Module, name: str, depth: int) -> Target:
        """The variable, or the object that it is an alias of."""
        value = module.names[name][0]
        if value.startswith("P:") and depth < MAX_DEPTH and _root_name(value) != name:
            target = self.resolve(module.name, value[2:])
            if target.kind != "ext" or target.name:
                return target
        return Target("var", module.name, name)

    def _has_module(self, module: str) -> bool:
        return module in self.modules or module in self._packages

    @cached_property
    def _packages(self) -> set[str]:
        """All packages, including those without an ``__init__.py``."""
        found: set[str] = set()
        for name in self.modules:
            parts = name.split(".")
            found.update(".".join(parts[:n]) for n in range(1, len(parts)))
        return found

    def follow(self, target: Target, steps: tuple[str, ...], depth: int = 0) -> Target:
        while steps and depth < MAX_DEPTH:
            step, rest = steps[0], steps[1:]
            depth += 1
            if step == INJECTED:
                steps = rest
                continue
            if (step, rest[:1]) == ("^", ("[]",)):
                steps = rest[1:]
                continue
            if (target.steps[-1:], step) == (("^",), "[]"):
                target, steps = target._replace(steps=target.steps[:-1]), rest
                continue
            match target.kind:
                case "module":
                    if not step.startswith("."):
                        return UNKNOWN
                    target = self._resolve_in_module(target.module, step)
                case "func" if step == "()" and not target.steps:
                    rest = self._skip_entering(target.id, rest)
                    target = self._resolve_result(target, target.of)
                case "class" if step == "[]" and rest[:1] == ("()",) and not target.steps:
                    pass  # a generic class with its type argument
                case "class" if step in ("()", "[]") and not target.steps:
                    target = Target("inst", *target.id)
                case "class" | "inst" | "self" | "var" if not target.steps and step.startswith("."):
                    found = self._resolve_member(target, step[1:])
                    if found is None:
                        return target._replace(steps=simplify_steps(steps))
                    target = found
                case "ext":
                    if not target.name:
                        return UNKNOWN
                    target = Target("ext", "", target.name + step)
                case _:
                    return target._replace(steps=simplify_steps((*target.steps, *steps)))
            steps = rest
        return target

    def _skip_entering(self, id: Id, rest: tuple[str, ...]) -> tuple[str, ...]:
        """Drop the steps that enter a context manager or a dependency: they lead to the yielded object."""
        is_context = rest[:2] in CONTEXT_STEPS and self._is_decorated(id, "contextmanager")
        is_given = rest[:1] == (INJECTED,)
        if not is_context and not is_given:
            return rest
        rest = rest[2:] if is_context else rest[1:]
        return ("[]", *rest) if self.function(id).yields else rest

    def _resolve_in_module(self, module: str, step: str) -> Target:
        below = f"{module}{step}"
        named = self.resolve_name(module, step[1:])
        if named.kind != "ext":
            return named
        if self._has_module(below):
            return Target("module", below, "")
        has_getattr = module in self.modules and "__getattr__" in self.modules[module].functions
        return self._resolve_result(Target("func", module, "__getattr__")) if has_getattr else named

    def _resolve_member(self, target: Target, name: str) -> Target | None:
        """The method of that name, or the result of the property."""
        of = self.class_of(target) if target.kind == "var" else target.id
        if of is None or of not in self.classes:
            return None
        method = self.classes.method(of, name)
        if method is None:
            return None
        if target.kind != "class" and self._is_decorated(method, "property"):
            if self._is_decorated(method, "cached_property"):
                return None  # Its result is stored as an attribute.
            return self._resolve_result(Target("func", *method), of=target)
        return Target("func", *method, of=target)

    def _is_decorated(self, id: Id, by: str) -> bool:
        return any(path.endswith(by) for path in self.function(id).decorators)

    def _resolve_result(self, target: Target, of: Target | None = None) -> Target:
        """The object that a function returns, if it existed before the call."""
        if target.id[1] not in self.modules[target.module].functions:
            return UNKNOWN
        function = self.function(target.id)
        if self.is_cached(target.module, function):
            return Target("cached", target.module, function.name)
        if target.id in self._resolving_results:
            return UNKNOWN
        self._resolving_results.add(target.id)
        try:
            return self._returned_target(target, function, of)
        finally:
            self._resolving_results.discard(target.id)

    def _returned_target(self, target: Target, function: Function, of: Target | None) -> Target:
        found = UNKNOWN
        for path in function.returns:
            if path[0] == "s" and of is not None:
                found = self.follow(of, tuple(path.split(STEP)[1:]), MAX_DEPTH - 3)
            elif path[0] == "g":
                found = self.resolve(target.module, path)
            elif path[0] in "cs" and function.owner:
                found = self._resolve(target.module, path, function.owner)
            elif path[0] == "p" and function.defaults.get(path[2:]) == "M":
                found = Target("default", target.module, f"{function.name}:{path[2:]}")
            else:
                continue
            if found.kind in ("var", "class", "cached", "self", "inst", "default"):
                return found
        return found if found.kind != "self" else UNKNOWN

    # -- instances

    def class_of(self, target: Target) -> Id | None:
        """The class of the program whose instance a module-level variable holds."""
        if target.kind == "inst":
            return target.id
        if target.kind != "var":
            return None
        made = self.class_made_by(target.module, self.value_of(target))
        return made if made is not None else self._set_later.get(target.id)

    def value_of(self, variable: Target) -> str:
        return self.modules[variable.module].names[variable.name][0]

    def class_made_by(self, module: str, value: str, owner: str = "") -> Id | None:
        """The class of the program whose instance the value is."""
        if not value.startswith("C:"):
            return None
        target = self.resolve(module, value[2:].partition("#")[0], owner)
        if target.kind == "class" and not target.steps:
            return target.id
        if target.kind == "func":
            result = self._resolve_result(target)
            if result.kind == "inst" and not result.steps:
                return result.id
        return None

    @cached_property
    def _set_later(self) -> dict[Id, Id]:
        """Variables that a function sets to an instance: ``global x; x = Agent()``."""
        found: dict[Id, Id] = {}
        for module, function in self.functions():
            for write in function.writes:
                if write.how == "rebind" and write.path[:2] == "g:" and write.value[:2] == "C:":
                    target = self.resolve(module.name, write.value[2:], function.owner)
                    if target.kind == "class" and not target.steps:
                        found[module.name, write.path[2:]] = target.id
        return found


def _place_of(module: Module) -> str:
    """The path below the import root. Directories above it say nothing about the module."""
    return module.name.replace(".", "/") + ("/__init__.py" if module.is_package else ".py")


def _root_name(value: str) -> str:
    return value[2:].partition(STEP)[0].partition(":")[2]
