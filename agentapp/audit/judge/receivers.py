"""The objects on which methods are called. A method called only on new objects changes no shared one."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from agentapp.audit.facts import Call, Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach, last_name
from agentapp.audit.judge.targets import Id

NEW, ANY = ("new", ""), ("any", "")


class Receivers:
    def __init__(self, program: Program, calls: Calls, reach: Reach) -> None:
        self._program, self._calls, self._reach = program, calls, reach
        self._known: dict[Id, bool] = {}

    def is_called_only_on_new_objects(self, module: Module, function: Function) -> bool:
        """Whether all calls of the method are known, and all are on an object that was just made."""
        id = (module.name, function.name)
        if id not in self._known:
            self._known[id] = self._has_only_new_receivers(id)
        return self._known[id]

    def _has_only_new_receivers(self, id: Id) -> bool:
        """Follow calls on ``self`` back to the first receivers: all must be new objects."""
        met: set[Id] = set()
        left = [id]
        while left:
            each = left.pop()
            if each == NEW or each in met:
                met.add(each)
                continue
            if each == ANY or not self._are_all_calls_known(each):
                return False
            met.add(each)
            left += self._receivers[each]
        return NEW in met

    def _are_all_calls_known(self, id: Id) -> bool:
        name = last_name(self._program.function(id))
        return (
            id in self._receivers
            and id not in self._calls.passed_on
            and name not in self._calls.unresolved_methods
        )

    @cached_property
    def _receivers(self) -> dict[Id, set[Id]]:
        """The receivers of each method while requests are served.

        A receiver is a method that calls it on its own ``self``, or `NEW`, or `ANY`.
        """
        found: dict[Id, set[Id]] = defaultdict(set)
        for module, function in self._program.functions():
            if (module.name, function.name) not in self._reach.reached:
                continue
            for call in function.calls:
                for callee in self._calls.find_callees(module.name, call.path, function.owner):
                    if self._program.function(callee).owner:
                        found[callee].add(self._receiver(module, function, call))
        return found

    def _receiver(self, module: Module, function: Function, call: Call) -> Id:
        if call.path.startswith("s|."):
            return module.name, function.name
        target = self._program.resolve(module.name, call.path, function.owner)
        is_new_object = target.of is not None and target.of.kind == "inst" and not target.of.steps
        return NEW if is_new_object else ANY
