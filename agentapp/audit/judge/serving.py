"""Methods that serve requests on an object which the user of the class makes once.

The program itself does not make the object: it is a WSGI or ASGI application, an admin class or a decorator.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from agentapp.audit.facts import Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import is_decorator, last_name
from agentapp.audit.judge.targets import Id
from agentapp.audit.known_names import RESPONSE_CLASSES, SINGLE_INSTANCE_BASES

SIGNATURES = (("environ", "start_response"), ("scope", "receive", "send"))
MAX_CALL_DEPTH = 4  # how many calls on the same object are followed


class Serving:
    def __init__(self, program: Program, calls: Calls) -> None:
        self._program, self._calls = program, calls

    def find_home(self, module: Module, function: Function) -> str | None:
        """The object on which the function runs for every request, as it is named in messages."""
        return self._found.get((module.name, function.name))

    @cached_property
    def _found(self) -> dict[Id, str]:
        found: dict[Id, str] = {}
        for module, function in self._program.functions():
            if not self._program.is_not_served(module):
                home = self._describe_home(module, function)
                if home is not None:
                    for id in self._with_own_methods(module, function, MAX_CALL_DEPTH):
                        found.setdefault(id, home)
        return found

    def _describe_home(self, module: Module, function: Function) -> str | None:
        if function.owner in module.classes:
            if self._is_application(module, function):
                return f"the application, a `{function.owner}`"
            if "request" in function.params and self._is_registered(module, function):
                return f"the registered `{function.owner}`"
        outer = module.functions.get(function.outer)
        if outer is not None and outer.owner and _is_decorator_wrapper(module, outer, function):
            return f"the `{outer.owner}` that decorates"
        return None

    def _is_application(self, module: Module, function: Function) -> bool:
        """Whether a server calls it for every request.

        Responses have the same signature, but are made anew for each request.
        """
        if last_name(function) != "__call__" or not any(
            function.params[1 : 1 + len(names)] == names for names in SIGNATURES
        ):
            return False
        id = (module.name, function.owner)
        names = (function.owner, *self._program.classes.outside_bases(id))
        return not any(map(RESPONSE_CLASSES.search, names))

    def _is_registered(self, module: Module, function: Function) -> bool:
        classes, id = self._program.classes, (module.name, function.owner)
        return any(
            SINGLE_INSTANCE_BASES.search(name)
            for each in (id, *classes.subclasses.get(id, ()))
            for name in classes.outside_bases(each)
        )

    def _with_own_methods(self, module: Module, function: Function, depth: int) -> Iterator[Id]:
        """The function, and the methods that it calls on the same object."""
        yield module.name, function.name
        if depth:
            for call in function.calls:
                if call.path.startswith("s|."):
                    owner = self._program.owner_of(module, function)
                    for callee in self._calls.find_callees(module.name, call.path, owner):
                        at = self._program.modules[callee[0]]
                        yield from self._with_own_methods(at, self._program.function(callee), depth - 1)


def _is_decorator_wrapper(module: Module, outer: Function, function: Function) -> bool:
    return f"d:{function.name}" in outer.returns and is_decorator(module, outer)
