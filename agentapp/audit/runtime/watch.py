"""Watches the objects that modules and classes of chosen packages hold.

`Watch.snapshot` walks from the loaded modules to all objects that can change and records what they hold;
`Watch.compare` reads the same objects again. A snapshot keeps these objects alive, so that a new object
cannot get the address of an old one: delete the snapshot when you are done.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType

from agentapp.audit.runtime.changes import Change, Kind
from agentapp.audit.runtime.inspectors import HERE, inspector_for
from agentapp.audit.runtime.nodes import Node, find_changed, find_differences
from agentapp.audit.runtime.walk import Walk
from agentapp.audit.runtime.wording import Wording


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The recorded objects. ``complete`` is false if there were more than the limits allow."""

    nodes: tuple[Node, ...]
    objects: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """Watches the loaded modules of ``packages``, and ``roots``, which are further objects with names.

    It goes ``depth`` steps from a module and visits at most ``most`` objects. Of a container with more than
    ``limit`` items it reads only the length, the beginning and the end. Texts name types and lengths; with
    ``values`` they also show values, which may be personal data. ``exclude`` lists patterns with ``*`` for
    objects that may change, including everything inside them.
    """

    packages: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    values: bool = False
    depth: int = 8
    limit: int = 2_000
    most: int = 50_000
    roots: tuple[tuple[str, object], ...] = field(default=(), repr=False, compare=False)
    _inside: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.packages, str) or isinstance(self.exclude, str):
            raise TypeError("packages and exclude are sequences of texts, not one text")
        object.__setattr__(self, "packages", tuple(self.packages))
        object.__setattr__(self, "exclude", tuple(self.exclude))
        object.__setattr__(self, "_inside", tuple(name + "." for name in self.packages))

    def owns(self, module: str) -> bool:
        """Whether the module belongs to the chosen packages, and not to the detector."""
        is_chosen = module in self.packages or module.startswith(self._inside)
        return is_chosen and not f"{module}.".startswith(HERE)

    def modules(self) -> list[tuple[str, ModuleType]]:
        """The modules of the packages that are loaded now."""
        loaded = [
            (name, module)
            for name, module in list(dict.items(sys.modules))
            if type(name) is str and issubclass(type(module), ModuleType) and self.owns(name)
        ]
        return sorted(loaded, key=lambda pair: pair[0])

    def excludes(self, where: str) -> bool:
        return any(_matches(pattern, where) for pattern in self.exclude)

    def snapshot(self) -> Snapshot:
        walk = self._walk()
        return Snapshot(tuple(walk.nodes), walk.visited, walk.complete)

    def compare(self, before: Snapshot) -> list[Change]:
        """The changes since the snapshot."""
        return [change for _, _, change in self.changes(before)]

    def changes(self, before: Snapshot) -> list[tuple[int, str, Change]]:
        """Like `compare`, each change with the id of the object and the label of the changed name."""
        found: list[tuple[int, str, Change]] = []
        told: set[tuple[str, Kind]] = set()
        wording, thread = Wording(self.values), threading.current_thread().name
        for node, now in find_changed(before.nodes, [node.held for node in before.nodes], self.limit):
            for each in find_differences(node, node.held, now, wording):
                where = node.where() + each.label
                if (where, each.kind) in told or self.excludes(where):
                    continue
                told.add((where, each.kind))
                change = Change(where, each.kind, each.before, each.after, (), thread)
                found.append((id(node.obj), each.label, change))
        return found

    def find_marks(self) -> tuple[list[tuple[str, str]], bool]:
        """All canary marks in shared objects with their places, and whether the search was complete."""
        walk = self._walk(marks=True)
        found = [(mark, where) for mark, where in dict.fromkeys(walk.found) if not self.excludes(where)]
        return found, walk.complete

    def _walk(self, marks: bool = False) -> Walk:
        walk = Walk(self, inspector_for, marks)
        walk.run()
        return walk


def _matches(pattern: str, where: str) -> bool:
    """Whether the pattern names the object or something that contains it."""
    if where == pattern or where.startswith(tuple(pattern + sign for sign in ".[(:")):
        return True
    expression = fnmatch.translate(pattern)[:-2]
    return re.fullmatch(expression + r"(?:[.\[(:].*)?", where, re.S) is not None
