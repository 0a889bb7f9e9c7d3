"""The walk from modules to all objects that can be reached from them, nearest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

from agentapp.audit.runtime.marks import marks_in
from agentapp.audit.runtime.nodes import Node, label_of, read
from agentapp.audit.runtime.objects import ATOMS, is_dunder
from agentapp.audit.runtime.shapes import MODULE, Shape
from agentapp.audit.runtime.states import halves
from agentapp.audit.runtime.wording import Wording

# Inspects one object: notes what it holds, and continues the walk with that.
Inspector = Callable[["Walk", Node], None]


class Bounds(Protocol):
    """The start, the limits and the packages of a walk."""

    @property
    def roots(self) -> tuple[tuple[str, object], ...]: ...
    @property
    def depth(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def values(self) -> bool: ...
    def modules(self) -> list[tuple[str, ModuleType]]: ...
    def owns(self, module: str) -> bool: ...


class Walk:
    """Visits each object once, with the inspector that ``inspector_for`` returns for its type, if any.

    With ``marks``, it also searches all texts for marks, and goes further into objects of libraries.
    """

    def __init__(
        self, bounds: Bounds, inspector_for: Callable[[Walk, type], Inspector | None], marks: bool = False
    ) -> None:
        self.nodes: list[Node] = []  # the objects that can change
        self.found: list[tuple[str, str]] = []  # marks, and where they were found
        self.visited = 0
        self.complete = True
        self.bounds, self.marks = bounds, marks
        self.most_hops = 3 if marks else 1
        self.wording = Wording(bounds.values)
        self._inspector_for = inspector_for
        self._inspectors: dict[int, Inspector] = {}  # by the id of a type
        self._plain = set(ATOMS)  # ids of types that need no inspection
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # Keeps objects alive, so that ids stay unique.
        self._queue: deque[tuple[Inspector, Node]] = deque()

    def run(self) -> None:
        for name, module in self.bounds.modules():
            self._seen.add(id(module))
            with suppress(Exception):
                self._begin(Node(module, None, name, 0, 0))
        for name, root in self.bounds.roots:
            self.expand(Node(None, None, name, 0, 0), (root,), lambda _: "")
        queue, most = self._queue, self.bounds.most
        while queue:
            self.visited += 1
            if self.visited > most:
                self.complete = False
                break
            inspector, node = queue.popleft()
            try:
                inspector(self, node)
            except Exception:  # One object that cannot be read must not stop the walk.
                self.complete = False

    def _begin(self, module: Node) -> None:
        if self.note(module, MODULE):
            self.expand_names(module, lambda name, value: not is_dunder(name))

    def note(self, node: Node, shape: Shape) -> bool:
        """Record what the object holds. False if it cannot be read."""
        held = read(shape, node.obj, self.bounds.limit)
        if held is None:
            return False
        node.shape, node.held = shape, held
        self.nodes.append(node)
        return True

    def expand(
        self, node: Node, items: Sequence[Any], label: Callable[[int], str], hops: int | None = None
    ) -> None:
        """Continue with the items of a node. ``hops`` is that of the node unless given."""
        if self.marks and (marks := marks_in(items)):
            self.found.extend((mark, node.where() + label(at)) for at, mark in marks)
        plain, depth = self._plain, node.depth + 1
        if depth > self.bounds.depth or plain.issuperset(map(id, map(type, items))):
            return
        if hops is None:
            hops = node.hops
        seen, inspectors = self._seen, self._inspectors
        for position, item in enumerate(items):
            kind = id(type(item))
            if kind in plain or id(item) in seen:
                continue
            self._kept.append(item)
            inspector = inspectors.get(kind) or self._new_inspector(type(item))
            if inspector is not None:
                seen.add(id(item))
                self._queue.append((inspector, Node(item, node, label(position), depth, hops)))

    def expand_names(
        self, node: Node, wanted: Callable[[str, Any], bool] | None = None, hops: int | None = None
    ) -> None:
        """Continue with the values of a namespace that was noted."""
        names, values = halves(node.held[1])
        if wanted is not None:
            chosen = [
                (name, value)
                for name, value in zip(names, values, strict=True)
                if type(name) is str and wanted(name, value)
            ]
            names, values = zip(*chosen, strict=True) if chosen else ((), ())
        self.expand(node, values, lambda at: label_of(names[at]) if type(names[at]) is str else ".?", hops)

    def _new_inspector(self, cls: type) -> Inspector | None:
        inspector = None
        with suppress(Exception):
            inspector = self._inspector_for(self, cls)
        if inspector is None:
            self._plain.add(id(cls))
        else:
            self._inspectors[id(cls)] = inspector
        return inspector
