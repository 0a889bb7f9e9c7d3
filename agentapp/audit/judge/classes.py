"""The classes of a program: their bases, methods and attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property

from agentapp.audit.facts import STEP, Class, Module, rank
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.known_names import AMBIGUOUS_MUTATORS

MAX_BASES = 20
FIELD_FUNCTIONS = frozenset({"field", "Field", "attrib", "ib", "PrivateAttr", "Factory"})


class Classes:
    def __init__(self, modules: Mapping[str, Module], resolve: Callable[[str, str], Target]) -> None:
        self._modules, self._resolve = modules, resolve
        self._bases: dict[Id, list[Id]] = {}
        self._instance_values: dict[Id, dict[str, str]] = {}

    def __getitem__(self, id: Id) -> Class:
        return self._modules[id[0]].classes[id[1]]

    def __contains__(self, id: Id) -> bool:
        return id[0] in self._modules and id[1] in self._modules[id[0]].classes

    def bases(self, id: Id) -> list[Id]:
        """The class and its bases, as far as they are in the program."""
        known = self._bases.get(id)
        if known is not None:
            return known
        found: list[Id] = self._bases.setdefault(id, [])
        left = [id]
        while left and len(found) < MAX_BASES:
            at = left.pop(0)
            if at in found:
                continue
            found.append(at)
            for base in self[at].bases:
                target = self._resolve(at[0], base)
                if target.kind == "class" and not target.steps:
                    left.append(target.id)
        return found

    def outside_bases(self, id: Id) -> set[str]:
        """The names of the bases that are not in the program."""
        targets = (
            self._resolve(at[0], base.split("|[]")[0]) for at in self.bases(id) for base in self[at].bases
        )
        return {target.name for target in targets if target.kind == "ext"}

    @cached_property
    def subclasses(self) -> dict[Id, list[Id]]:
        found: dict[Id, list[Id]] = defaultdict(list)
        for module in self._modules.values():
            for name in module.classes:
                for base in self.bases((module.name, name))[1:]:
                    found[base].append((module.name, name))
        return found

    def method(self, id: Id, name: str) -> Id | None:
        for module, class_ in self.bases(id):
            if name in self[module, class_].methods:
                return module, f"{class_}.{name}"
        return None

    def overridden(self, id: Id, name: str) -> list[Id]:
        """The methods of that name in subclasses."""
        below = self.subclasses.get(id, ())
        return [
            (module, f"{class_}.{name}") for module, class_ in below if name in self[module, class_].methods
        ]

    def is_ambiguous_mutator(self, method: str) -> bool:
        """Whether a mutating method of containers is also a method of some class of the program."""
        return method in AMBIGUOUS_MUTATORS and method in self._method_names

    @cached_property
    def _method_names(self) -> set[str]:
        every = (class_ for module in self._modules.values() for class_ in module.classes.values())
        return {name for class_ in every for name in class_.methods}

    def attribute(self, id: Id, name: str) -> tuple[Id, tuple[str, int, bool]] | None:
        """The class attribute of that name, and the class or base that sets it."""
        for at in self.bases(id):
            found = self[at].attributes.get(name)
            if found is not None:
                return at, found
        return None

    def instance_values(self, id: Id) -> dict[str, str]:
        """The values that the methods of a class and its bases assign to attributes of ``self``."""
        known = self._instance_values.get(id)
        if known is None:
            known = self._instance_values[id] = {}
            for at in reversed(self.bases(id)):
                known |= self.own_values.get(at, {})
        return known

    @cached_property
    def own_sources(self) -> dict[Id, dict[str, list[str]]]:
        """For each class, the paths of the objects that its methods assign to attributes of ``self``."""
        found: dict[Id, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for module in self._modules.values():
            for class_ in module.classes.values():
                for name, value in _declared_values(class_).items():
                    if value.startswith("C:"):
                        found[module.name, class_.name][name].append(f"{value[2:]}|()")
            for function in module.functions.values():
                for write in function.writes if function.owner else ():
                    if write.source and write.how == "attr" and write.path.startswith("s|."):
                        found[module.name, function.owner][write.path[3:]].append(write.source)
        return found

    @cached_property
    def own_values(self) -> dict[Id, dict[str, str]]:
        """For each class, the value of highest rank that it assigns to each attribute of ``self``."""
        found: dict[Id, dict[str, str]] = defaultdict(dict)
        for module in self._modules.values():
            for class_ in module.classes.values():
                found[module.name, class_.name] |= _declared_values(class_)
            for function in module.functions.values():
                if not function.owner:
                    continue
                mine = found[module.name, function.owner]
                for write in function.writes:
                    if write.how == "attr" and write.path.startswith("s|.") and write.path.count(STEP) == 1:
                        name = write.path[3:]
                        if rank(write.value) > rank(mine.get(name, "-")):
                            mine[name] = write.value
        return found


def _declared_values(class_: Class) -> dict[str, str]:
    """Values that each instance gets from a declaration.

    Examples are ``items: list = field(default_factory=list)`` and, where defaults are copied,
    ``items: list = []``.
    """
    found = {}
    for name, (value, _, annotated) in class_.attributes.items():
        if value == "M" and annotated:
            found[name] = "M"
        elif value.startswith("C:") and "#" in value:
            maker, _, given = value.partition("#")
            if maker.rpartition("|")[2].rpartition(":")[2].lstrip(".") in FIELD_FUNCTIONS:
                found[name] = given
    return found
