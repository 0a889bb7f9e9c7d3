"""Which locks are held in the body of a ``with``."""

from __future__ import annotations

import ast

from agentapp.audit.extract.assignments import bind
from agentapp.audit.extract.chains import chain
from agentapp.audit.extract.paths import stepped
from agentapp.audit.extract.scope import Scope


def with_(scope: Scope, node: ast.With | ast.AsyncWith) -> None:
    """Whatever is entered counts: whether it is a lock is judged later, when more is known."""
    count = len(scope.locks)
    for item in node.items:
        paths = chain(scope, item.context_expr)
        scope.locks += paths[:1]
        if item.optional_vars is not None:
            bind(scope, item.optional_vars, stepped(paths, ".__enter__", "()"), "?")
    scope.each(node.body)
    del scope.locks[count:]
