"""The objects that a call changes, and a few questions about writes."""

from __future__ import annotations

from agentapp.audit.facts import STEP, Call, Function, Module, Write
from agentapp.audit.judge.program import Program
from agentapp.audit.known_names import ARGUMENT_MUTATORS, MUTATING_METHODS


def find_changed_object(call: Call) -> Write | None:
    """``x.append(...)`` is a write to ``x``."""
    base, _, last = call.path.rpartition(STEP)
    if base and last[1:] in MUTATING_METHODS:
        return Write(base, "call", call.line, call.locks, call.lazy, last[1:])
    return None


def find_changed_argument(program: Program, module: Module, call: Call) -> Write | None:
    """The first argument, if the function is a library function that changes it."""
    if call.path[:2] == "g:" and call.args and call.args[0][0] == "0":
        target = program.resolve(module.name, call.path)
        if target.kind == "ext" and target.name in ARGUMENT_MUTATORS:
            return Write(call.args[0][1], "call", call.line, call.locks)
    return None


def keeps_task(function: Function, write: Write) -> bool:
    """Whether the write adds a background task to a set that only keeps it alive until it is done."""
    return write.value == "add" and any(call.path.endswith(".add_done_callback") for call in function.calls)


def is_replaced(write: Write) -> bool:
    """``alias += x``, if ``x`` is not known to be a list: numbers and texts are replaced, not changed."""
    return write.how == "aug" and write.value != "M" and STEP in write.path


def is_in_place(write: Write) -> bool:
    return write.how in ("item", "call", "aug") or write.value == "+"
