"""Inspectors for objects that hold others: containers, instances and wrappers."""

from __future__ import annotations

from collections import defaultdict

from agentapp.audit.runtime import objects
from agentapp.audit.runtime.nodes import Node
from agentapp.audit.runtime.shapes import LIBRARY_DEFAULTDICT, MAPPINGS, Shape
from agentapp.audit.runtime.walk import Inspector, Walk


def inspect_tuple(walk: Walk, node: Node) -> None:
    items = tuple(tuple.__iter__(node.obj))[: walk.bounds.limit]
    walk.expand(node, items, lambda at: f"[{at}]")


def inspect_container(shape: Shape, attributes: Inspector | None, walk: Walk, node: Node) -> None:
    """``attributes`` inspects the attributes of an object whose class derives from a container."""
    if node.hops > 0 and issubclass(type(node.obj), defaultdict):
        shape = LIBRARY_DEFAULTDICT
    if walk.note(node, shape):
        items = node.held[1]
        if shape.sort in MAPPINGS:
            half = len(items) // 2
            walk.expand(node, items, lambda at: walk.wording.key(items[at % half]))
        else:
            walk.expand(node, items, lambda at: f"[{at}]")
    if attributes is not None:
        attributes(walk, Node(node.obj, node.parent, node.label, node.depth, node.hops))


def inspect_instance(shape: Shape, walk: Walk, node: Node) -> None:
    """An instance of a class of the watched packages. The count of hops starts anew from it."""
    if walk.note(node, shape):
        walk.expand_names(node, None, 0)
        walk.expand(node, (type(node.obj),), lambda _: "", 0)
        _inspect_exception(walk, node, 0)


def inspect_foreign(shape: Shape, is_container: bool, walk: Walk, node: Node) -> None:
    """An instance of a class of a library."""
    if node.hops >= walk.most_hops and not is_container:
        return
    if walk.note(node, shape):
        everything = is_container or walk.marks
        wanted = None if everything else lambda name, value: not name.startswith("_")
        walk.expand_names(node, wanted, node.hops if is_container else node.hops + 1)
        _inspect_exception(walk, node, node.hops + 1)


def _inspect_exception(walk: Walk, node: Node, hops: int) -> None:
    if issubclass(type(node.obj), BaseException):
        walk.expand(node, objects.exception_args(node.obj), lambda at: f".args[{at}]", hops)


def inspect_wrapped(walk: Walk, node: Node) -> None:
    """A wrapper: inspect the object that it wraps."""
    walk.expand(node, objects.referents(node.obj, walk.bounds.limit), lambda _: "")


def inspect_referents(walk: Walk, node: Node) -> None:
    """An object written in C, such as a generator, an iterator or a queue."""
    if node.hops < walk.most_hops:
        walk.expand(node, objects.referents(node.obj, walk.bounds.limit), lambda _: "", node.hops + 1)
