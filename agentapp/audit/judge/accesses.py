"""Collects all writes to shared objects that a request can reach."""

from __future__ import annotations

from agentapp.audit.facts import MODULE, STEP, Call, Function, Module, Write, is_new_object
from agentapp.audit.judge.changes import (
    find_changed_argument,
    find_changed_object,
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
from agentapp.audit.judge.violations import Access, Key, SharedObject, Violation
from agentapp.audit.judge.writes import Writes, is_application
from agentapp.audit.known_names import (
    CONSTRUCTION_METHODS,
    LOGGER_FACTORIES,
    LOGGER_MUTATORS,
    PROCESS_WIDE_CALLS,
    STATEFUL_CLASSES,
)


class Accesses:
    def __init__(
        self,
        program: Program,
        reach: Reach,
        locks: Locks,
        makers: Makers,
        writes: Writes,
        params: Params,
        flags: Flags,
    ) -> None:
        self._program, self._reach, self._locks, self._flags = program, reach, locks, flags
        self._makers, self._writes, self._params = makers, writes, params
        self._found: dict[Key, SharedObject] = {}

    def gather(self) -> list[SharedObject]:
        for module, function in self._program.functions():
            if (module.name, function.name) in self._reach.reached:
                self._collect(module, function)
            elif function.name == MODULE and not self._program.is_not_served(module):
                self._collect_deferred(module, function)
        return list(self._found.values())

    def _collect(self, module: Module, function: Function) -> None:
        for write in function.writes:
            self._note_write(module, function, write)
        for call in function.calls:
            change = find_changed_object(call) or find_changed_argument(self._program, module, call)
            if change is not None and not keeps_task(function, change):
                self._note_write(module, function, change)
            if call.args:
                self._note_arguments(module, function, call)
            if call.path[:2] == "g:":
                self._note_known_call(module, function, call)

    def _collect_deferred(self, module: Module, function: Function) -> None:
        """Calls at import whose body runs later: generators, and functions bound by ``partial``."""
        for call in function.calls:
            target = self._program.resolve(module.name, call.path)
            is_partial = target.kind == "ext" and target.name.rpartition(".")[2] == "partial"
            is_function = target.kind == "func" and not target.steps
            if is_partial or (is_function and self._program.function(target.id).yields):
                self._note_arguments(module, function, call)

    def _note_write(self, module: Module, function: Function, write: Write) -> None:
        owner = self._program.owner_of(module, function)
        if is_new_object(write.path) or is_replaced(write):
            return
        if any(self._flags.is_off(module, owner, path) for path in write.only_if):
            return
        target = self._writes.find_target(module, write, owner)
        if target.steps and is_new_object(target.steps[-1]):
            return
        violation = self._writes.find_violation(module, function, write, target)
        if violation is not None:
            locks = self._locks.held_at(module, function, write.locks)
            self._add(violation, module, function, write, locks)

    def _note_arguments(self, module: Module, function: Function, call: Call) -> None:
        """Record the shared objects that are passed to the call and changed by it."""
        owner = self._program.owner_of(module, function)
        for argument, change in self._params.changes(module, function, call):
            if argument[0] == "p" and not is_application(argument):
                continue
            path = STEP.join((argument, *change.steps))
            target = self._program.resolve(module.name, path, owner)
            if is_new_object(path) or (target.steps and is_new_object(target.steps[-1])):
                continue
            if target.kind == "self" and last_name(function) in CONSTRUCTION_METHODS:
                continue
            write = change.write._replace(path=path, locks=())
            if is_replaced(write):
                continue
            violation = self._writes.find_violation(module, function, write, target)
            if violation is not None:
                at, facts = self._program.modules[change.where[0]], self._program.function(change.where)
                locks = self._locks.held_at(module, function, call.locks)
                locks |= self._locks.lock_names(at, facts, change.write.locks)
                self._add(violation, at, facts, write, locks)

    def _note_known_call(self, module: Module, function: Function, call: Call) -> None:
        """Record calls that change the process, a logger, or an object of a class known to be stateful."""
        target = self._program.resolve(module.name, call.path)
        if target.kind == "ext" and target.name in PROCESS_WIDE_CALLS:
            violation = Violation("ISO014", ("ext", target.name), f"`{target.name}`", module.name, call.line)
            self._add(violation, module, function, Write(call.path, "", call.line, ()), frozenset())
        elif target.kind == "var" and target.steps and target.steps[0].startswith("."):
            made = self._makers.maker_of_variable(target)
            if LOGGER_FACTORIES.search(made) and target.steps[0] in LOGGER_MUTATORS:
                key = ("logger", *target.id)
                violation = Violation("ISO014", key, f"the logger `{target.name}`", module.name, call.line)
                self._add(violation, module, function, Write(call.path, "", call.line, ()), frozenset())
            if (
                STATEFUL_CLASSES.search(made)
                or made.endswith("sessionmaker()")
                or made == "sqlalchemy.orm.Session"
            ):
                line = self._program.modules[target.module].names[target.name][1]
                violation = Violation("ISO004", ("var", *target.id), f"`{target.name}`", target.module, line)
                locks = self._locks.held_at(module, function, call.locks)
                self._add(violation, module, function, Write(call.path, "call", call.line, ()), locks)

    def _add(
        self, violation: Violation, module: Module, function: Function, write: Write, locks: frozenset[str]
    ) -> None:
        shared = self._found.setdefault(violation.key, SharedObject(violation.key))
        access = Access(violation, module, function, write.line, locks, write.lazy, is_in_place(write))
        shared.writes.append(access)
