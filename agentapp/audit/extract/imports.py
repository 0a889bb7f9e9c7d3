"""Handlers for imports. A name that is imported inside a function is local to that function."""

from __future__ import annotations

import ast

from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import Module


def run_import(scope: Scope, node: ast.Import) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        _bind(scope, name, alias.name if alias.asname else name, "")


def run_import_from(scope: Scope, node: ast.ImportFrom) -> None:
    module = scope.reading.module
    base = _absolute_name(module, node)
    for alias in node.names:
        if alias.name == "*":
            module.stars += (base,)
        else:
            _bind(scope, alias.asname or alias.name, base, alias.name)


def _absolute_name(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of the module. Too many leading dots lead to the top-level package."""
    base = node.module or ""
    if not node.level:
        return base
    parts = module.name.split(".")
    keep = len(parts) - node.level + (1 if module.is_package else 0)
    return ".".join([*parts[: max(keep, 0)], *([base] if base else [])])


def _bind(scope: Scope, name: str, base: str, what: str) -> None:
    imports = scope.reading.module.imports
    if scope.is_module or scope.class_ is not None:
        imports[name] = (base, what)
    else:
        path = scope.import_path(name)
        imports[path.removeprefix("g:")] = (base, what)
        scope.env[name] = (path,)
        scope.local_names.add(name)
