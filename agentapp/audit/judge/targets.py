"""What a path leads to."""

from __future__ import annotations

from typing import NamedTuple

Id = tuple[str, str]  # a module's name and that of something in it


class Target(NamedTuple):
    """``kind`` is ``module``, ``var`` (a name of a module), ``class``, ``func``, ``inst`` (a new instance
    of a class), ``self`` (of the class it is in), ``param``, ``cell`` (a variable of an enclosing function),
    ``cached`` (what a cached function gives), ``default`` (of a parameter, given back), ``patched`` (a
    module's name that is not a variable of it), or ``ext`` (not of this program).
    """

    kind: str
    module: str
    name: str
    steps: tuple[str, ...] = ()
    of: Target | None = None  # the object a method belongs to

    @property
    def id(self) -> Id:
        return self.module, self.name


UNKNOWN = Target("ext", "", "")


def simplify_steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Without new containers and copies on the way: what is in them is what is in the originals."""
    found: list[str] = []
    for step in steps:
        if step[0] == "^" or not found or found[-1][0] not in "~^":
            found.append(step)
        elif found[-1] == "~":
            found[-1] = step
        elif found[-1] == "^" and step == "[]":
            found.pop()
        elif step != "~":
            return ("^",)  # what the container itself has, or one of several places: new, as far as is known
    return tuple(found)
