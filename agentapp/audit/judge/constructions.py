"""The calls that make instances, and their arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from agentapp.audit.facts import MODULE, Call, Function, Module
from agentapp.audit.judge.params import find_parameter
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id


class Constructions:
    def __init__(self, program: Program) -> None:
        self._program = program

    def calls_of(self, id: Id) -> list[tuple[Module, Function, Call]]:
        return self._found.get(id, [])

    @cached_property
    def _found(self) -> dict[Id, list[tuple[Module, Function, Call]]]:
        found: dict[Id, list[tuple[Module, Function, Call]]] = defaultdict(list)
        for module, function in self._program.functions():
            for call in function.calls:
                target = self._program.resolve(module.name, call.path, function.owner)
                if target.kind == "class" and not target.steps:
                    found[target.id].append((module, function, call))
        return found

    def values_kept_in(self, id: Id, attribute: str) -> Iterator[tuple[Module, Function, str]]:
        """The objects that construction stores in an attribute: the function that passes it, and its path."""
        classes = self._program.classes
        for at in classes.bases(id):
            module = self._program.modules[at[0]]
            for path in classes.own_sources.get(at, {}).get(attribute, ()):
                if path.startswith("g:"):
                    yield module, module.functions[MODULE], path
        for made in (id, *classes.subclasses.get(id, ())):
            init = classes.method(made, "__init__")
            value = classes.instance_values(made).get(attribute, "?")
            if init is None:
                params, name = self._fields(made), attribute
            elif value.startswith("P:p:"):
                params, name = self._program.function(init).params[1:], value[4:]
            else:
                continue
            for module, function, call in self.calls_of(made):
                for where, path in call.args:
                    if find_parameter(params, where) == name:
                        yield module, function, path

    def _fields(self, id: Id) -> tuple[str, ...]:
        """The fields of a dataclass, in the order of the constructor's parameters."""
        bases = reversed(self._program.classes.bases(id))
        attributes = (self._program.classes[at].attributes for at in bases)
        names = (name for each in attributes for name, (_, _, annotated) in each.items() if annotated)
        return tuple(dict.fromkeys(names))
