"""Which locks are held: by ``with``, by ``acquire`` and ``release``, and by an exit stack."""

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


def expression(scope: Scope, node: ast.Expr) -> None:
    """A statement that is only an expression: where a lock is taken or given back by a call."""
    if isinstance(node.value, ast.Call):
        _acquire_or_release(scope, node.value)
    scope.eval(node.value)


def _acquire_or_release(scope: Scope, call: ast.Call) -> None:
    match call.func:
        case ast.Attribute(value=base, attr="acquire"):
            scope.locks += chain(scope, base)[:1]
        case ast.Attribute(attr="enter_context" | "enter_async_context"):
            scope.locks += [path for arg in call.args[:1] for path in chain(scope, arg)[:1]]
        case ast.Attribute(value=base, attr="release"):
            for path in chain(scope, base)[:1]:
                if path in scope.locks:
                    scope.locks.remove(path)
