"""Handlers for assignments to names, attributes and items, and for ``del``."""

from __future__ import annotations

import ast

from agentapp.audit.extract.chains import find_paths
from agentapp.audit.extract.dependencies import find_dependency
from agentapp.audit.extract.names import add_target_names
from agentapp.audit.extract.paths import FRESH, Paths, add_steps, element_paths, item_paths
from agentapp.audit.extract.scope import Scope
from agentapp.audit.extract.values import describe_value
from agentapp.audit.facts import MODULE, STEP, is_new_object, rank


def run_assign(scope: Scope, node: ast.Assign) -> None:
    paths, value = scope.eval(node.value), describe_value(scope, node.value)
    first = node.targets[0]
    if scope.is_module and isinstance(node.value, ast.Subscript) and isinstance(first, ast.Name):
        scope.reading.dependencies[first.id] = find_dependency(scope, node.value)
    is_copy = bool(paths) and _are_new_objects(paths)
    for target in node.targets:
        if is_copy:
            add_target_names(target, scope.copied_names)
        bind(scope, target, paths, value, node.value)


def run_ann_assign(scope: Scope, node: ast.AnnAssign) -> None:
    if node.value is not None:
        paths, value = scope.eval(node.value), describe_value(scope, node.value)
        bind(scope, node.target, paths, value, node.value, annotated=node.annotation)
    elif scope.class_ is not None and isinstance(node.target, ast.Name):
        scope.class_.attributes.setdefault(node.target.id, ("?", node.lineno, True))


def run_aug_assign(scope: Scope, node: ast.AugAssign) -> None:
    scope.eval(node.value)
    target, line = node.target, node.lineno
    if not isinstance(target, ast.Name):
        scope.read(find_paths(scope, target), line)
        bind(scope, target, FRESH, "?")
    elif target.id in scope.globals:
        scope.write((f"g:{target.id}",), "rebind", line, "+")
    elif target.id in scope.nonlocals:
        scope.write(scope.enclosing_paths(target.id), "rebind", line, "+")
    elif scope.class_ is None and not scope.is_module:
        scope.write(scope.env.get(target.id, FRESH), "aug", line, describe_value(scope, node.value))


def eval_named_expr(scope: Scope, node: ast.NamedExpr) -> Paths:
    paths, name = scope.eval(node.value), node.target.id
    if not scope.is_module and name not in scope.globals and name not in scope.nonlocals:
        scope.local_names.add(name)
    bind(scope, node.target, paths, describe_value(scope, node.value))
    return paths


def run_delete(scope: Scope, node: ast.Delete) -> None:
    for target in node.targets:
        match target:
            case ast.Subscript(value=base, slice=key):
                scope.eval(key)
                scope.write(find_paths(scope, base), "item", target.lineno, "del")
            case ast.Attribute(value=base, attr=attr):
                scope.write(add_steps(find_paths(scope, base), f".{attr}"), "attr", target.lineno, "del")
            case ast.Name(id=name):
                scope.env.pop(name, None)


def bind_elements(scope: Scope, target: ast.expr, paths: Paths) -> None:
    """Bind the target of a loop to the elements of what is looped over."""
    if any("~" in path for path in paths):
        add_target_names(target, scope.copied_names)
    bind(scope, target, element_paths(paths), "?")


def bind(
    scope: Scope,
    target: ast.expr,
    paths: Paths,
    value: str,
    node: ast.expr | None = None,
    *,
    annotated: ast.expr | None = None,
) -> None:
    """Bind a target. ``node`` is the right side, if known: its tuple is unpacked together with the target."""
    match target:
        case ast.Name(id=name):
            bind_name(scope, name, paths, value, target.lineno, annotated)
        case ast.Attribute(value=base, attr=attr):
            _note_kept_functions(scope, paths)
            scope.write(add_steps(find_paths(scope, base), f".{attr}"), "attr", target.lineno, value, paths)
        case ast.Subscript():
            _note_kept_functions(scope, paths)
            _bind_item(scope, target, paths, value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            _bind_parts(scope, parts, paths, node)
        case ast.Starred(value=inner):
            bind(scope, inner, FRESH, "M")


def bind_name(
    scope: Scope, name: str, paths: Paths, value: str, line: int, annotated: ast.expr | None = None
) -> None:
    if scope.class_ is not None:
        is_shared = annotated is not None and "ClassVar" in ast.dump(annotated)
        scope.class_.attributes[name] = (value, line, annotated is not None and not is_shared)
    elif scope.is_module:
        if scope.function.name == MODULE:
            scope.reading.bind(name, value, line)
    elif name in scope.globals:
        scope.write((f"g:{name}",), "rebind", line, value)
    elif name in scope.nonlocals:
        scope.write(scope.enclosing_paths(name), "rebind", line, value)
    else:
        scope.env[name] = paths
        known = scope.function.locals.get(name)
        if known is None or rank(value) > rank(known):
            scope.function.locals[name] = value


def _bind_item(scope: Scope, target: ast.Subscript, paths: Paths, value: str) -> None:
    base, key = target.value, target.slice
    scope.eval(key)
    scope.write(find_paths(scope, base), "item", target.lineno, value)
    if isinstance(base, ast.Name) and isinstance(key, ast.Constant) and _are_new_objects(paths):
        scope.replaced_items.add((base.id, key.value))


def _bind_parts(scope: Scope, parts: list[ast.expr], paths: Paths, node: ast.expr | None) -> None:
    values = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == len(parts) else None
    for n, part in enumerate(parts):
        if values is not None and not isinstance(values[n], ast.Starred):
            bind(scope, part, find_paths(scope, values[n]), describe_value(scope, values[n]), values[n])
        else:
            bind(scope, part, tuple(each for path in paths for each in _part_paths(path, n)), "?")


def _part_paths(path: str, n: int) -> Paths:
    return item_paths(path, n) if path.rpartition(STEP)[2][0] == "^" else add_steps((path,), "[]")


def _note_kept_functions(scope: Scope, paths: Paths) -> None:
    """A function that is stored in an object may be called later by any code that has the object."""
    scope.mentions.update(path for path in paths if path[0] in "df")


def _are_new_objects(paths: Paths) -> bool:
    """Whether all paths are copies or new containers. True if there are none: then the object is new."""
    return all(map(is_new_object, paths))
