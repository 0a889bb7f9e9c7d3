"""What a call changes: the object whose method it is, or what it is given."""

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
    """A function outside that changes what it is given."""
    if call.path[:2] == "g:" and call.args and call.args[0][0] == "0":
        target = program.resolve(module.name, call.path)
        if target.kind == "ext" and target.name in ARGUMENT_MUTATORS:
            return Write(call.args[0][1], "call", call.line, call.locks)
    return None


def keeps_task(function: Function, write: Write) -> bool:
    """A set that keeps a background task alive until it is done, and is asked for nothing else."""
    return write.value == "add" and any(call.path.endswith(".add_done_callback") for call in function.calls)


def is_replaced(write: Write) -> bool:
    """``alias += something``, of which nothing says that it is a list: numbers and texts are replaced."""
    return write.how == "aug" and write.value != "M" and STEP in write.path


def is_in_place(write: Write) -> bool:
    return write.how in ("item", "call", "aug") or write.value == "+"
