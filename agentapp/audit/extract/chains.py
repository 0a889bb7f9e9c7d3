"""Handlers for names, attributes and items: the paths of the object that they lead to."""

from __future__ import annotations

import ast
from typing import Any

from agentapp.audit.extract.paths import FRESH, OWN_MODULE, Paths, add_steps, class_paths, item_paths
from agentapp.audit.extract.scope import Scope


def find_paths(scope: Scope, node: ast.expr) -> Paths:
    """Like `Scope.eval`, but does not record that the name, attribute or item was read."""
    kind = type(node)  # Names are the most frequent nodes, so they are tested first.
    if kind is ast.Name:
        return scope.look_up(node.id)  # type: ignore[attr-defined]
    if isinstance(node, ast.Attribute):
        paths, attr = find_paths(scope, node.value), node.attr
        if not paths or attr == "__dict__":
            return paths
        return class_paths(paths) if attr == "__class__" else add_steps(paths, f".{attr}")
    if isinstance(node, ast.Subscript):
        scope.eval(node.slice)
        if scope.replaced_items and _is_replaced_item(scope, node):
            return FRESH
        return _subscript_paths(find_paths(scope, node.value), node.slice)
    return scope.eval(node)


def _subscript_paths(paths: Paths, key: ast.expr) -> Paths:
    if isinstance(key, ast.Slice):
        return add_steps(paths, "~")
    if paths == ("g:sys|.modules",) and isinstance(key, ast.Name) and key.id == "__name__":
        return OWN_MODULE
    index = key.value if isinstance(key, ast.Constant) else None
    return tuple(each for path in paths for each in item_paths(path, index))


def _is_replaced_item(scope: Scope, node: ast.Subscript) -> bool:
    """Whether this item of a copy was replaced by a new object before."""
    base, key = node.value, node.slice
    return (
        isinstance(base, ast.Name)
        and isinstance(key, ast.Constant)
        and (base.id, key.value) in scope.replaced_items
    )


def read_paths(scope: Scope, node: ast.expr) -> Paths:
    """Like `find_paths`, and record the read."""
    paths = find_paths(scope, node)
    if paths and scope.reading.with_reads:
        root: Any = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not (isinstance(root, ast.Name) and _is_taken_out(scope, root.id)):
            scope.read(paths, node.lineno)
    return paths


def _is_taken_out(scope: Scope, name: str) -> bool:
    """Whether the variable holds a copy or an element: using it does not read the container again."""
    return name in scope.copied_names or any("[]" in path for path in scope.env.get(name, FRESH))


def peek_paths(scope: Scope, node: ast.expr) -> Paths:
    """The paths of an expression that was evaluated before: records nothing."""
    match node:
        case ast.Name(id=name):
            return scope.look_up(name)
        case ast.Attribute(value=base, attr=attr):
            return add_steps(peek_paths(scope, base), f".{attr}")
        case ast.Subscript(value=base, slice=key):
            return _subscript_paths(peek_paths(scope, base), key)
        case ast.Call(func=ast.Name(id="super")):
            return scope.own_object()
        case ast.Call(func=function):
            return add_steps(peek_paths(scope, function), "()")
    return FRESH
