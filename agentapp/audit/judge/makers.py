"""The name of the library function or class that made an object."""

from __future__ import annotations

from agentapp.audit.judge.program import Program
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.known_names import (
    APP_CLASSES,
    CONTAINER_CLASSES,
    THREAD_LOCAL_CLASSES,
    THREAD_SAFE_CLASSES,
)

MAX_ALIAS_DEPTH = 4  # how many variables are followed


class Makers:
    def __init__(self, program: Program) -> None:
        self._program = program

    def maker_of(self, module: str, value: str, depth: int = MAX_ALIAS_DEPTH) -> str:
        """The name of the library function or class whose call makes the value, or an empty text."""
        if value == "M":
            return "list"
        if not value.startswith("C:"):
            return ""
        target = self._program.resolve(module, value[2:].partition("#")[0])
        if target.kind == "ext":
            return target.name
        if target.kind == "var" and depth:
            inner = self.maker_of(target.module, self._program.value_of(target), depth - 1)
            return f"{inner}()" if inner else ""
        return ""

    def maker_of_variable(self, target: Target) -> str:
        return self.maker_of(target.module, self._program.value_of(target))

    def is_app(self, target: Target) -> bool:
        return target.kind == "var" and APP_CLASSES.search(self.maker_of_variable(target)) is not None

    def is_scoped(self, target: Target) -> bool:
        """Whether the variable has another content in each thread or context."""
        maker = self.maker_of_variable(target)
        return THREAD_LOCAL_CLASSES.search(maker) is not None or self.is_local_instance(target)

    def is_local_instance(self, target: Target) -> bool:
        of = self._program.class_of(target._replace(steps=()))
        return of is not None and self.is_per_thread(of)

    def is_per_thread(self, id: Id) -> bool:
        return any(THREAD_LOCAL_CLASSES.search(name) for name in self._program.classes.outside_bases(id))

    def is_container_class(self, id: Id) -> bool:
        """Whether the class derives from a list, a dict or another container."""
        return any(CONTAINER_CLASSES.search(name) for name in self._program.classes.outside_bases(id))


def is_container(value: str, made: str) -> bool:
    return value == "M" or CONTAINER_CLASSES.search(made) is not None


def is_thread_safe(made: str) -> bool:
    """Whether objects of this class are thread-local or thread-safe."""
    return THREAD_LOCAL_CLASSES.search(made) is not None or THREAD_SAFE_CLASSES.search(made) is not None
