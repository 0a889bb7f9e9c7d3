"""Gathers every change, reachable by a request, of something that outlives it."""

from __future__ import annotations

from agentapp.audit.facts import MODULE, STEP, Call, Function, Module, Write, is_new
from agentapp.audit.judge.changes import (
    changed_argument,
    changed_object,
    is_in_place,
    is_replaced,
    keeps_task,
)
from agentapp.audit.judge.flags import Flags
from agentapp.audit.judge.locks import Locks
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.params import Params
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach, last_name
from agentapp.audit.judge.state import Broken, Key, State, Touch
from agentapp.audit.judge.states import States, is_application
from agentapp.audit.known import INITS, LOGGER_CHANGES, LOGGERS, PROCESS_CALLS, STATEFUL


class Touches:
    def __init__(
        self,
        program: Program,
        reach: Reach,
        locks: Locks,
        makers: Makers,
        states: States,
        params: Params,
        flags: Flags,
    ) -> None:
        self._program, self._reach, self._locks, self._flags = program, reach, locks, flags
        self._makers, self._states, self._params = makers, states, params
        self._found: dict[Key, State] = {}

    def gathered(self) -> list[State]:
        for module, function in self._program.functions():
            if (module.name, function.name) in self._reach.reached:
                self._look_at(module, function)
            elif function.name == MODULE and not self._program.is_not_served(module):
                self._look_at_later(module, function)
        return list(self._found.values())

    def _look_at(self, module: Module, function: Function) -> None:
        for write in function.writes:
            self._note(module, function, write)
        for call in function.calls:
            change = changed_object(call) or changed_argument(self._program, module, call)
            if change is not None and not keeps_task(function, change):
                self._note(module, function, change)
            if call.args:
                self._note_arguments(module, function, call)
            if call.path[:2] == "g:":
                self._note_known(module, function, call)

    def _look_at_later(self, module: Module, function: Function) -> None:
        """What is only begun at import: generators, and functions that are bound to arguments."""
        for call in function.calls:
            target = self._program.resolve(module.name, call.path)
            is_partial = target.kind == "ext" and target.name.rpartition(".")[2] == "partial"
            is_function = target.kind == "func" and not target.steps
            if is_partial or (is_function and self._program.function(target.id).yields):
                self._note_arguments(module, function, call)

    def _note(self, module: Module, function: Function, write: Write) -> None:
        owner = self._program.owner_of(module, function)
        if is_new(write.path) or is_replaced(write):
            return
        if any(self._flags.is_off(module, owner, path) for path in write.only_if):
            return
        target = self._states.target(module, write, owner)
        if target.steps and is_new(target.steps[-1]):
            return
        broken = self._states.broken(module, function, write, target)
        if broken is not None:
            locks = self._locks.at(module, function, write.locks)
            self._add(broken, module, function, write, locks)

    def _note_arguments(self, module: Module, function: Function, call: Call) -> None:
        """The call is given something that outlives requests, and changes it."""
        owner = self._program.owner_of(module, function)
        for argument, change in self._params.changes(module, function, call):
            if argument[0] == "p" and not is_application(argument):
                continue
            path = STEP.join((argument, *change.steps))
            target = self._program.resolve(module.name, path, owner)
            if is_new(path) or (target.steps and is_new(target.steps[-1])):
                continue
            if target.kind == "self" and last_name(function) in INITS:
                continue
            write = change.write._replace(path=path, locks=())
            if is_replaced(write):
                continue
            broken = self._states.broken(module, function, write, target)
            if broken is not None:
                at, facts = self._program.modules[change.where[0]], self._program.function(change.where)
                locks = self._locks.at(module, function, call.locks)
                locks |= self._locks.named(at, facts, change.write.locks)
                self._add(broken, at, facts, write, locks)

    def _note_known(self, module: Module, function: Function, call: Call) -> None:
        """Functions that change the process, and methods of what is known to keep a state."""
        target = self._program.resolve(module.name, call.path)
        if target.kind == "ext" and target.name in PROCESS_CALLS:
            broken = Broken("ISO014", ("ext", target.name), f"`{target.name}`", module.name, call.line)
            self._add(broken, module, function, Write(call.path, "", call.line, ()), frozenset())
        elif target.kind == "var" and target.steps and target.steps[0].startswith("."):
            made = self._makers.of_variable(target)
            if LOGGERS.search(made) and target.steps[0] in LOGGER_CHANGES:
                key = ("logger", *target.id)
                broken = Broken("ISO014", key, f"the logger `{target.name}`", module.name, call.line)
                self._add(broken, module, function, Write(call.path, "", call.line, ()), frozenset())
            if STATEFUL.search(made) or made.endswith("sessionmaker()") or made == "sqlalchemy.orm.Session":
                line = self._program.modules[target.module].names[target.name][1]
                broken = Broken("ISO004", ("var", *target.id), f"`{target.name}`", target.module, line)
                locks = self._locks.at(module, function, call.locks)
                self._add(broken, module, function, Write(call.path, "call", call.line, ()), locks)

    def _add(
        self, broken: Broken, module: Module, function: Function, write: Write, locks: frozenset[str]
    ) -> None:
        state = self._found.setdefault(broken.key, State(broken.key))
        touch = Touch(broken, module, function, write.line, locks, write.lazy, is_in_place(write))
        state.writes.append(touch)
