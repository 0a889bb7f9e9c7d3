"""The handler for ``with``: which locks are held in its body."""

from __future__ import annotations

import ast
from types import MappingProxyType

from agentapp.audit.extract.assignments import bind
from agentapp.audit.extract.chains import find_paths
from agentapp.audit.extract.paths import add_steps
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import Call

_CONTEXT_METHODS = MappingProxyType(
    {ast.With: (".__enter__", ".__exit__"), ast.AsyncWith: (".__aenter__", ".__aexit__")}
)


def run_with(scope: Scope, node: ast.With | ast.AsyncWith) -> None:
    """Every context manager is recorded as a possible lock; pass two decides whether it is one."""
    count = len(scope.locks)
    entering = _CONTEXT_METHODS[type(node)]
    for item in node.items:
        paths = find_paths(scope, item.context_expr)
        line, locks = node.lineno, tuple(scope.locks)
        for path in paths:
            scope.function.calls += [Call(f"{path}|{step}", line, locks) for step in entering]
        scope.locks += paths[:1]
        if item.optional_vars is not None:
            bind(scope, item.optional_vars, add_steps(paths, entering[0], "()"), "?")
    scope.run_all(node.body)
    del scope.locks[count:]
