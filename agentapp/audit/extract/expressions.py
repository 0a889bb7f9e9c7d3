"""Handlers for compound expressions: the paths of their result, or none if it is a new object."""

from __future__ import annotations

import ast

from agentapp.audit.extract.assignments import bind_elements
from agentapp.audit.extract.passing import pass_on
from agentapp.audit.extract.paths import FRESH, Paths, container_paths, copy_paths, limit_paths
from agentapp.audit.extract.scope import Scope


def eval_constant(scope: Scope, node: ast.Constant) -> Paths:
    return FRESH


def eval_operation(scope: Scope, node: ast.BinOp) -> Paths:
    scope.eval(node.left)
    scope.eval(node.right)
    return FRESH


def eval_comparison(scope: Scope, node: ast.Compare) -> Paths:
    scope.eval(node.left)
    for other in node.comparators:
        scope.eval(other)
    return FRESH


def eval_formatted_string(scope: Scope, node: ast.JoinedStr) -> Paths:
    for value in node.values:
        scope.eval(value)
    return FRESH


def eval_inner(scope: Scope, node: ast.Await | ast.Starred) -> Paths:
    return scope.eval(node.value)


def eval_conditional(scope: Scope, node: ast.IfExp) -> Paths:
    scope.eval(node.test)
    return limit_paths([*scope.eval(node.body), *scope.eval(node.orelse)])


def eval_boolean(scope: Scope, node: ast.BoolOp) -> Paths:
    """If the default of ``given`` is an empty container, ``given or {}`` never returns that default."""
    found = [path for value in node.values for path in scope.eval(value)]
    first = node.values[0]
    if isinstance(node.op, ast.Or) and isinstance(first, ast.Name) and _has_empty_default(scope, first.id):
        found = [path for path in found if path != f"p:{first.id}"]
    return limit_paths(found)


def _has_empty_default(scope: Scope, name: str) -> bool:
    return scope.function.defaults.get(name) == "M"


def eval_display(scope: Scope, node: ast.List | ast.Tuple | ast.Set) -> Paths:
    """A new container. A starred part is copied into it; other parts are passed on."""
    spread: list[str] = []
    parts: list[Paths] = []
    for part in node.elts:
        if isinstance(part, ast.Starred):
            spread += copy_paths(scope.eval(part.value))
        else:
            parts.append(pass_on(scope, part))
    return limit_paths([*spread, *container_paths(parts, in_places=isinstance(node, ast.Tuple))])


def eval_dict_display(scope: Scope, node: ast.Dict) -> Paths:
    spread: list[str] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            spread += copy_paths(scope.eval(value))
        else:
            scope.eval(key)
            pass_on(scope, value)
    return limit_paths(spread)


def eval_comprehension(
    scope: Scope, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
) -> Paths:
    """A new container or generator with the values of the comprehension."""
    before = scope.env
    scope.env = dict(before)
    for generator in node.generators:
        _bind_generator(scope, generator)
    if isinstance(node, ast.DictComp):
        scope.eval(node.key)
        found = pass_on(scope, node.value)
    else:
        found = pass_on(scope, node.elt)
    scope.env = before
    return container_paths([found])


def _bind_generator(scope: Scope, node: ast.comprehension) -> None:
    paths = scope.eval(node.iter)
    saved = scope.is_module, scope.class_
    scope.is_module, scope.class_ = False, None  # A comprehension has its own scope.
    bind_elements(scope, node.target, paths)
    scope.is_module, scope.class_ = saved
    for test in node.ifs:
        scope.eval(test)
