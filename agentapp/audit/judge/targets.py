"""The target of a path."""

from __future__ import annotations

from typing import NamedTuple

Id = tuple[str, str]  # the name of a module, and of a function, class or variable in it


class Target(NamedTuple):
    """The object that a path leads to. ``steps`` are those that could not be resolved.

    ``kind`` is ``module``, ``var`` (a variable of a module), ``class``, ``func``, ``inst`` (a new instance
    of a class), ``self`` (an instance, in a method of its class), ``param``, ``cell`` (a variable of an
    enclosing function), ``cached`` (the result of a cached function), ``default`` (the default of a
    parameter, returned by the function), ``patched`` (a name that is assigned to a module and is not one of
    its variables), or ``ext`` (outside the program).
    """

    kind: str
    module: str
    name: str
    steps: tuple[str, ...] = ()
    of: Target | None = None  # for a method: the object that it is called on

    @property
    def id(self) -> Id:
        return self.module, self.name


UNKNOWN = Target("ext", "", "")


def simplify_steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Remove copies and new containers from the steps: their items are those of the originals."""
    found: list[str] = []
    for step in steps:
        if step[0] == "^" or not found or found[-1][0] not in "~^":
            found.append(step)
        elif found[-1] == "~":
            found[-1] = step
        elif found[-1] == "^" and step == "[]":
            found.pop()
        elif step != "~":
            return ("^",)  # An attribute or another index of a new container: it counts as new.
    return tuple(found)
