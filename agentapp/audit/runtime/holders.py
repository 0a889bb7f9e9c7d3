"""Looking into objects that hold others: containers, instances, and what wraps something."""

from __future__ import annotations

from collections import defaultdict

from agentapp.audit.runtime import objects
from agentapp.audit.runtime.nodes import Node
from agentapp.audit.runtime.shapes import ASKED, MAPPINGS, Shape
from agentapp.audit.runtime.walk import Look, Walk


def look_into_tuple(walk: Walk, node: Node) -> None:
    items = tuple(tuple.__iter__(node.obj))[: walk.bounds.limit]
    walk.expand(node, items, lambda at: f"[{at}]")


def look_into_container(shape: Shape, attributes: Look | None, walk: Walk, node: Node) -> None:
    """``attributes`` looks into those that an object of a class derived from a container has besides."""
    if node.hops > 0 and issubclass(type(node.obj), defaultdict):
        shape = ASKED
    if walk.note(node, shape):
        items = node.held[1]
        if shape.sort in MAPPINGS:
            half = len(items) // 2
            walk.expand(node, items, lambda at: walk.wording.key(items[at % half]))
        else:
            walk.expand(node, items, lambda at: f"[{at}]")
    if attributes is not None:
        attributes(walk, Node(node.obj, node.parent, node.label, node.depth, node.hops))


def look_into_instance(shape: Shape, walk: Walk, node: Node) -> None:
    """Of a class of ours: whatever it holds is as near to us as it is, so hops are counted anew."""
    if walk.note(node, shape):
        walk.expand_names(node, None, 0)
        walk.expand(node, (type(node.obj),), lambda _: "", 0)
        _look_into_exception(walk, node, 0)


def look_into_foreign(shape: Shape, is_container: bool, walk: Walk, node: Node) -> None:
    """Of a library's class."""
    if node.hops >= walk.most_hops and not is_container:
        return
    if walk.note(node, shape):
        everything = is_container or walk.marks
        wanted = None if everything else lambda name, value: not name.startswith("_")
        walk.expand_names(node, wanted, node.hops if is_container else node.hops + 1)
        _look_into_exception(walk, node, node.hops + 1)


def _look_into_exception(walk: Walk, node: Node, hops: int) -> None:
    if issubclass(type(node.obj), BaseException):
        walk.expand(node, objects.exception_args(node.obj), lambda at: f".args[{at}]", hops)


def look_through(walk: Walk, node: Node) -> None:
    """To what it wraps: it holds nothing else."""
    walk.expand(node, objects.referents(node.obj, walk.bounds.limit), lambda _: "")


def look_beyond(walk: Walk, node: Node) -> None:
    """An object written in C: a generator, an iterator, a queue."""
    if node.hops < walk.most_hops:
        walk.expand(node, objects.referents(node.obj, walk.bounds.limit), lambda _: "", node.hops + 1)
