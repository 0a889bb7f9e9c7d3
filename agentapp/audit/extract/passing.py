"""Objects that leave a function: as arguments, return values or yielded values.

A function that leaves may be called later by other code.
"""

from __future__ import annotations

import ast
import re

from agentapp.audit.extract.paths import FRESH, Paths, container_paths
from agentapp.audit.extract.scope import Scope

_PLACE = re.compile(r"\^\d+$")


def pass_on(scope: Scope, node: ast.expr) -> Paths:
    """Evaluate an expression, and record that its object is passed on."""
    paths = scope.eval(node)
    for path in paths:
        if path[0] in "gdfs" and path[-1] not in "]~^" and not _PLACE.search(path):
            scope.mentions.add(path)
    return paths


def pass_arguments(scope: Scope, node: ast.Call) -> tuple[tuple[str, str], ...]:
    """Evaluate the arguments: position or name, and path, of those that are not new objects."""
    found: list[tuple[str, str]] = []
    for n, arg in enumerate(node.args):
        if type(arg) is ast.Constant:
            continue
        if isinstance(arg, ast.Starred):
            found += [("*", _PLACE.sub("^", path)) for path in pass_on(scope, arg.value)]
        else:
            found += [(str(n), path) for path in pass_on(scope, arg)]
    for keyword in node.keywords:
        if type(keyword.value) is not ast.Constant:
            found += [(keyword.arg or "**", path) for path in pass_on(scope, keyword.value)]
    return tuple(found)


def run_return(scope: Scope, node: ast.Return) -> None:
    if node.value is not None:
        scope.returns.update(pass_on(scope, node.value))


def eval_yield(scope: Scope, node: ast.Yield | ast.YieldFrom) -> Paths:
    """Yielded objects count as returned. The object that ``send`` passes in is not known."""
    scope.function.yields = True
    scope.function.yielded_under = tuple(scope.locks)
    if node.value is not None:
        paths = pass_on(scope, node.value)
        scope.returns.update(paths if isinstance(node, ast.YieldFrom) else container_paths([paths]))
    return FRESH
