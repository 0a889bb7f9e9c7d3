"""Writes to a module-level variable, to its object, or to an attribute or item of that object."""

from __future__ import annotations

from agentapp.audit.facts import Write
from agentapp.audit.judge.makers import Makers, is_container
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.judge.violations import Key, Violation
from agentapp.audit.known_names import APP_CLASSES, CONTAINER_CLASSES, THREAD_SAFE_CLASSES


def key_of(variable: Target) -> Key:
    """The key of a variable, or of one attribute of it: each attribute is judged separately."""
    attribute = variable.steps[:1] if variable.steps and variable.steps[0].startswith(".") else ()
    return ("var", *variable.id, *attribute)


class Variables:
    def __init__(self, program: Program, makers: Makers) -> None:
        self._program, self._makers = program, makers

    def find_violation(self, write: Write, target: Target) -> Violation | None:
        home = self._program.modules[target.module]
        value, line = home.names[target.name]
        made = self._makers.maker_of(target.module, value)

        def violation(rule: str, name: str = f"`{target.name}`") -> Violation:
            return Violation(rule, key_of(target), name, target.module, line)

        if self._program.is_not_served(home):
            return None
        if self._makers.is_scoped(target):
            is_default = "#M" in value and target.steps[:1] == ("[]",)
            return violation("ISO010", f"the default of `{target.name}`") if is_default else None
        if write.how == "next":
            return None
        if APP_CLASSES.search(made) and write.how in ("attr", "item", "call", "aug"):
            is_method = write.how == "call" and not target.steps
            return None if is_method else violation("ISO012", f"the application object `{target.name}`")
        if write.how == "rebind" or (write.how == "attr" and not target.steps):
            return violation("ISO005" if write.lazy else "ISO002")
        if self._is_harmless(write, target, value, made):
            return None
        of = self._program.class_of(target)
        if of is not None:
            found = violation("ISO004")
            if target.steps and target.steps[0].startswith("."):
                return found._replace(key=("attr", *of, target.steps[0][1:]))
            return found if target.steps else found._replace(key=("attr", *of, ""))
        is_made_outside = value.startswith("C:") and not CONTAINER_CLASSES.search(made)
        if is_made_outside and target.steps and write.how in ("attr", "item"):
            return violation("ISO016")
        return violation("ISO006" if write.lazy and write.how in ("item", "call") else "ISO001")

    def _is_harmless(self, write: Write, target: Target, value: str, made: str) -> bool:
        """Whether the write goes to a new or thread-safe object, or changes nothing."""
        if "()" in target.steps:
            return True  # The result of a call is a new object.
        if THREAD_SAFE_CLASSES.search(made):
            return True
        of = self._program.class_of(target)
        if of is not None and not target.steps and self.is_done_by_method(of, write):
            return True
        if of is not None and target.steps and target.steps[0].startswith("."):
            value = self._program.classes.instance_values(of).get(target.steps[0][1:], "?")
            made = self._makers.maker_of(of[0], value)
            if "[]" in target.steps and self._program.classes.is_ambiguous_mutator(write.value):
                return True
        if is_container(value, made):
            return False
        if write.how == "aug":
            return not target.steps  # An immutable object is replaced, not changed.
        return write.how == "call"

    def is_done_by_method(self, of: Id, write: Write) -> bool:
        """Whether a method of the program does the write: then the method itself is judged."""
        special = "__delitem__" if write.value == "del" else "__setitem__"
        if write.how in ("call", "item"):
            name = write.value if write.how == "call" else special
            if self._program.classes.method(of, name) is not None:
                return True
        return write.how == "call" and not self._makers.is_container_class(of)
