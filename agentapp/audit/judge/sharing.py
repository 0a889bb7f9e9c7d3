"""The classes that have an instance which outlives requests, and where that instance is kept."""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.facts import STEP, Class, Function, Module, Write
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.known_names import CONSTRUCTION_METHODS, ENUM_BASES, SERVING_METHODS

Kept = tuple[Id, str]  # a class, and the place of its instance, as it is named in messages


class Sharing:
    def __init__(self, program: Program, reach: Reach, makers: Makers) -> None:
        self._program, self._reach, self._makers = program, reach, makers
        self._homes: dict[Id, str] = {}
        self.singletons: set[Id] = set()  # classes that return the same instance each time
        self._find_all()

    def find_home(self, id: Id) -> str | None:
        """The place where an instance of the class or of a subclass is kept."""
        for other in (id, *self._program.classes.subclasses.get(id, ())):
            if other in self._homes:
                return self._homes[other]
        return None

    def _find_all(self) -> None:
        left: list[Kept] = []
        for module in self._program.modules.values():
            if not self._program.is_not_served(module):
                left += self._kept_by_module(module)
                for function in module.functions.values():
                    left += self._kept_by_function(module, function)
                    left += self._kept_after_start(module, function)
        while left:
            id, home = left.pop()
            if id not in self._homes and not self._makers.is_per_thread(id):
                self._homes[id] = home
                left += self._kept_by_instance(id, home)

    def _kept_by_module(self, module: Module) -> Iterator[Kept]:
        made_by = self._program.class_made_by
        for name, (value, line) in module.names.items():
            if (made := made_by(module.name, value)) is not None:
                yield made, f"`{name}` ({module.path}:{line})"
        for class_ in module.classes.values():
            for name, (value, line, _) in class_.attributes.items():
                if (made := made_by(module.name, value)) is not None:
                    yield made, f"`{class_.name}.{name}` ({module.path}:{line})"
            if self._is_singleton(module, class_):
                self.singletons.add((module.name, class_.name))
                yield (module.name, class_.name), f"the only `{class_.name}` ({module.path}:{class_.line})"

    def _kept_by_instance(self, id: Id, home: str) -> Iterator[Kept]:
        classes = self._program.classes
        for at in classes.bases(id):
            for name in classes[at].methods:
                if name in CONSTRUCTION_METHODS:
                    module = self._program.modules[at[0]]
                    for inner, _ in self._instances_in(module, module.functions[f"{at[1]}.{name}"]):
                        yield inner, f"{home}, which makes it"
            for name, value in classes.own_values.get(at, {}).items():
                if (made := self._program.class_made_by(at[0], value, at[1])) is not None:
                    yield made, f"{home}, in its `{name}`"

    def _kept_by_function(self, module: Module, function: Function) -> Iterator[Kept]:
        program = self._program
        where = f"{module.path}:{function.line}"
        for name, value in function.defaults.items():
            if (made := program.class_made_by(module.name, value)) is not None:
                yield made, f"the default of `{name}` ({where})"
        for write in function.writes:
            kept = program.class_made_by(module.name, write.value, function.owner)
            if write.value == "P:s" and function.owner in module.classes:
                kept = module.name, function.owner
            if kept is not None and self._outlives(module, function, write):
                yield kept, f"`{as_source(write.path)}` ({module.path}:{write.line})"
        if not function.outer:
            yield from self._kept_by_decorators(module, function)
        if program.is_cached(module.name, function):
            for path in function.returns:
                target = program.resolve(module.name, path, function.owner)
                if target.kind == "inst" and not target.steps:
                    yield target.id, f"what `{function.name}` caches ({where})"
        if self._reach.runs_only_at_start(module, function):
            for name, value in function.locals.items():
                made = program.class_made_by(module.name, value)
                if made is not None and _is_captured(module, function, name):
                    yield made, f"`{name}` of `{function.name}` ({where})"

    def _kept_by_decorators(self, module: Module, function: Function) -> Iterator[Kept]:
        """An instance of a decorator class replaces the function, so it lives as long as the module."""
        for path in function.decorators:
            target = self._program.resolve(module.name, path)
            if target.kind in ("class", "inst") and not target.steps:
                yield target.id, f"the decorator of `{function.name}` ({module.path}:{function.line})"

    def _outlives(self, module: Module, function: Function, write: Write) -> bool:
        """Whether the object that is written to outlives the request."""
        target = self._program.resolve(module.name, write.path, function.owner)
        is_lasting = target.kind in ("var", "class", "module") and (write.how == "rebind" or target.steps)
        return bool(is_lasting) or self._makers.is_app(target) or _mentions_app(write.path, target)

    def _kept_after_start(self, module: Module, function: Function) -> Iterator[Kept]:
        """Instances that are made before requests are served, and are passed on or stored."""
        id = (module.name, function.name)
        if id in self._reach.reached or not self._reach.runs_before_serving(id):
            return
        for made, path in self._instances_in(module, function):
            yield made, f"`{as_source(path)}` ({module.path}:{function.line})"

    def _instances_in(self, module: Module, function: Function) -> Iterator[tuple[Id, str]]:
        """The instances that a function makes and passes on or stores."""
        for path in function.mentions:
            if path.endswith("()"):
                target = self._program.resolve(module.name, path, function.owner)
                if target.kind == "inst" and not target.steps:
                    yield target.id, path

    # -- singletons

    def _is_singleton(self, module: Module, class_: Class) -> bool:
        outside = self._program.classes.outside_bases((module.name, class_.name))
        return (
            self._is_served_by_one((module.name, class_.name))
            or any(map(ENUM_BASES.search, outside))
            or any(
                "ingleton" in path for path in (*class_.decorators, *class_.keywords.values(), *class_.bases)
            )
            or self._is_kept_by_metaclass(module, class_)
            or any(
                _keeps_its_instance(self._program.modules[at[0]], self._program.classes[at])
                for at in self._program.classes.bases((module.name, class_.name))
            )
        )

    def _is_served_by_one(self, id: Id) -> bool:
        """Middleware, and views with ``init_every_request = False``, are made once by the framework."""
        classes = self._program.classes
        facts = classes[id]
        if facts.attributes.get("init_every_request", ("",))[0] == "K0":
            return True
        init = classes.method(id, "__init__")
        if init and self._program.function(init).params[1:2] == ("get_response",):
            return True
        is_one = facts.name.endswith("Middleware") or any(
            "Middleware" in name for name in classes.outside_bases(id)
        )
        return is_one and any(classes.method(id, name) for name in SERVING_METHODS)

    def _is_kept_by_metaclass(self, module: Module, class_: Class) -> bool:
        meta = class_.keywords.get("metaclass")
        target = self._program.resolve(module.name, meta) if meta is not None else None
        if target is None or target.kind != "class":
            return False
        call, init = (self._program.classes.method(target.id, name) for name in ("__call__", "__init__"))
        if call is None:
            return False
        facts = self._program.function(call)
        if any(write.how in ("item", "attr") for write in facts.writes):
            return True
        made = [write.value for write in self._program.function(init).writes] if init else []
        return "C:s|.__call__" in made and "s|.__call__|()" not in facts.returns


def _keeps_its_instance(module: Module, class_: Class) -> bool:
    """Whether a method sets ``cls._instance = cls()``, or all instances share one ``__dict__``."""
    name = class_.name
    makers = ("C:s|.__new__", "C:c|.__new__", "C:c", f"C:g:{name}", "C:g:object|.__new__")
    for method in class_.methods:
        function = module.functions.get(f"{name}.{method}")
        for write in function.writes if function else ():
            is_dict = write.how == "attr" and write.path in ("s|.__dict__", "s")
            if is_dict and write.value.startswith("P:") and not write.value.startswith("P:p:"):
                return True
            is_class = write.path.startswith(("c|.", f"g:{name}|."))
            if is_class and write.how in ("attr", "item") and write.value.startswith(makers):
                return True
    return False


def _is_captured(module: Module, function: Function, name: str) -> bool:
    path = f"f:{function.name}:{name}"
    return any(
        call.path.startswith(path)
        for inner in module.functions.values()
        if inner.outer.startswith(function.name)
        for call in inner.calls
    )


def _mentions_app(path: str, target: Target) -> bool:
    return "current_app" in target.name or "|.app|" in path or path.startswith(("p:app|", "f:create_app:app"))


def as_source(path: str) -> str:
    """A path as it would be written in source code."""
    root, *steps = path.split(STEP)
    kind, _, name = root.partition(":")
    text = {"s": "self", "c": "cls"}.get(kind, name.rpartition(":")[2].rpartition("/")[2])
    return text + "".join(step if step != "[]" else "[...]" for step in steps if step != "~")
