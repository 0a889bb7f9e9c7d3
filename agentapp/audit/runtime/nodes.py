"""A node of the walk: one object, how it was reached, what it held, and how that has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentapp.audit.runtime.changes import Kind
from agentapp.audit.runtime.objects import MISSING
from agentapp.audit.runtime.sameness import (
    are_same_items,
    are_same_members,
    is_alike,
    is_filled_by_reading,
    is_unchanged,
)
from agentapp.audit.runtime.shapes import MAPPINGS, Shape
from agentapp.audit.runtime.states import EMPTY, State, as_dict
from agentapp.audit.runtime.wording import Wording


class Node:
    """An object that was reached on a walk. ``shape`` and ``held`` are set if the object can change.

    ``depth`` counts the steps from a module, ``hops`` the steps inside objects of libraries.
    """

    __slots__ = ("depth", "held", "hops", "label", "obj", "parent", "shape")

    def __init__(self, obj: Any, parent: Node | None, label: str, depth: int, hops: int) -> None:
        self.obj = obj
        self.parent = parent
        self.label = label
        self.depth = depth
        self.hops = hops
        self.shape: Shape | None = None
        self.held: State = EMPTY

    def rename(self, name: str) -> None:
        """Use this name, regardless of how the object was reached."""
        self.parent, self.label, self.hops = None, name, 0

    def where(self) -> str:
        labels: list[str] = []
        node: Node | None = self
        while node is not None:
            labels.append(node.label)
            node = node.parent
        return "".join(reversed(labels))


def label_of(name: str) -> str:
    """The label of a name. A variable of an enclosing function already starts with a colon."""
    return name if name.startswith(":") else "." + name


def read(shape: Shape, obj: Any, limit: int) -> State | None:
    """What the object holds; ``None`` if reading fails because it changes all the time or is broken."""
    for _ in range(3):
        try:
            return shape.read(obj, limit)
        except RuntimeError:  # changed size during iteration
            continue
        except Exception:
            return None
    return None


def find_changed(nodes: Sequence[Node], held: Sequence[State], limit: int) -> Iterator[tuple[Node, State]]:
    """The nodes that no longer hold the identical objects, each with what it holds now."""
    for node, before in zip(nodes, held, strict=True):
        if node.shape is None:
            continue
        now = read(node.shape, node.obj, limit)
        if now is not None and not is_unchanged(before, now):
            yield node, now


@dataclass(frozen=True, slots=True)
class Difference:
    label: str  # of the changed name in a namespace, or empty
    kind: Kind
    before: str
    after: str


def find_differences(node: Node, before: State, now: State, wording: Wording) -> list[Difference]:
    """Compare by equality what `is_unchanged` found different by identity."""
    shape = node.shape
    if shape is None:
        return []
    if shape.sort == "names":
        return list(_find_name_differences(node.obj, shape, before, now, wording))
    if shape.sort == "asked" and is_filled_by_reading(before, now):
        return []
    if now[0] != before[0]:
        kind: Kind = "grew" if now[0] > before[0] else "shrank"
    else:
        same = are_same_members if shape.sort == "set" else are_same_items
        if same(before[1], now[1]):
            return []
        kind = "changed"
    if shape.sort == "cache":
        return [Difference("", kind, f"cache of {before[0]}", f"cache of {now[0]}")]
    was, is_now = (wording.state(node.obj, each, shape.sort in MAPPINGS) for each in (before, now))
    return [Difference("", kind, was, is_now)]


def _find_name_differences(
    obj: Any, shape: Shape, before: State, now: State, wording: Wording
) -> Iterator[Difference]:
    old, new = as_dict(before), as_dict(now)
    for name in [*old, *(name for name in new if name not in old)]:
        was, is_now = old.get(name, MISSING), new.get(name, MISSING)
        if is_alike(was, is_now) or shape.ignores(obj, name, was, is_now):
            continue
        kind: Kind = "new" if was is MISSING else "gone" if is_now is MISSING else "rebound"
        yield Difference(label_of(name), kind, wording.of(was), wording.of(is_now))
