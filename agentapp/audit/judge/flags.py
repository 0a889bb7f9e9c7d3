"""Attributes that are never set to true: code that runs only if they are true never runs."""

from __future__ import annotations

from agentapp.audit.facts import Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.constructions import Constructions
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id
from agentapp.audit.known_names import CONSTRUCTION_METHODS

FALSE_VALUES = frozenset({"K0", "N"})


class Flags:
    def __init__(self, program: Program, calls: Calls, constructions: Constructions) -> None:
        self._program, self._calls, self._constructions = program, calls, constructions
        self._known: dict[tuple[Id, str], bool] = {}

    def is_off(self, module: Module, owner: str, path: str) -> bool:
        """Whether ``self.flag`` is false in every instance that the program makes."""
        id, flag = (module.name, owner), path.removeprefix("s|.")
        if id not in self._program.classes or "|" in flag:
            return False
        key = (id, flag)
        if key not in self._known:
            self._known[key] = self._is_off(id, flag)
        return self._known[key]

    def _is_off(self, id: Id, flag: str) -> bool:
        if any(
            setter[1].rpartition(".")[2] not in CONSTRUCTION_METHODS
            for setter in self._calls.setters_of(flag)
        ):
            return False
        value = self._program.classes.instance_values(id).get(flag)
        if value is None:
            found = self._program.classes.attribute(id, flag)
            # Without an __init__, the attribute may be a parameter of a generated constructor.
            has_init = self._program.classes.method(id, "__init__") is not None
            return has_init and found is not None and found[1][0] in FALSE_VALUES
        return value in FALSE_VALUES or (value.startswith("P:p:") and self._is_never_given(id, value[4:]))

    def _is_never_given(self, id: Id, param: str) -> bool:
        """Whether the parameter's default is false and all calls of the constructor have no arguments."""
        init = self._program.classes.method(id, "__init__")
        made = self._constructions.calls_of(id)
        if init is None or not made or self._program.classes.subclasses.get(id):
            return False
        is_off = self._program.function(init).defaults.get(param) == "K0"
        return is_off and not any(call.given for _, _, call in made)
