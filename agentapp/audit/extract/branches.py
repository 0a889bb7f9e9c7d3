"""Statements that may run or not: what a variable may be afterwards, and what was asked before."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from agentapp.audit.extract.assignments import bind_elements, bind_name
from agentapp.audit.extract.chains import chain, quiet
from agentapp.audit.extract.names import captured
from agentapp.audit.extract.paths import FRESH, Paths, elements, merged, stepped
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import MAIN, Function
from agentapp.audit.known import is_lockish


def if_(scope: Scope, node: ast.If) -> None:
    if scope.is_module and _is_main(node.test):
        _main(scope, node.body)
        scope.each(node.orelse)
        return
    scope.eval(node.test)
    missing, present = _asks(scope, node.test)
    under = any(is_lockish(path) for path in scope.locks)
    start = len(scope.asked)
    scope.asked += [(path, under) for path in missing]
    end = len(scope.asked)
    flags = [path for path in _flags(scope, node.test) if path.startswith("s|.")]
    _branches(scope, node.body, node.orelse, only_if=flags)
    del scope.asked[start:end]
    if present and _leaves(node.body):  # so what follows only runs if it was not there
        scope.asked += [(path, under) for path in present]


def for_(scope: Scope, node: ast.For | ast.AsyncFor) -> None:
    bind_elements(scope, node.target, scope.eval(node.iter))
    _branches(scope, node.body, node.orelse)


def while_(scope: Scope, node: ast.While) -> None:
    scope.eval(node.test)
    _branches(scope, node.body, node.orelse)


def match_(scope: Scope, node: ast.Match) -> None:
    parts = elements(scope.eval(node.subject))
    for case in node.cases:
        for name in captured(case.pattern):
            bind_name(scope, name, parts, "?", case.pattern.lineno)
        if case.guard is not None:
            scope.eval(case.guard)
    _branches(scope, *(case.body for case in node.cases))


def try_(scope: Scope, node: ast.Try) -> None:
    scope.each(node.body)
    after = dict(scope.env)
    for handler in node.handlers:
        scope.each(handler.body)
        after = merged([after, scope.env])
    scope.env = after
    scope.each(node.orelse)
    scope.each(node.finalbody)


def _flags(scope: Scope, test: ast.expr) -> Paths:
    """What must be true for the body to run: ``if self.debug and x:``."""
    match test:
        case ast.Attribute():
            return quiet(scope, test)
        case ast.BoolOp(op=ast.And(), values=values):
            return tuple(path for value in values for path in _flags(scope, value))
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=True)]):
            return _flags(scope, left)
    return FRESH


def _branches(scope: Scope, *bodies: list[ast.stmt], only_if: Sequence[str] = ()) -> None:
    """Whichever of them ran: afterwards a variable may be what any of them made of it.

    A lock is held if all of them left it so. The first only runs if those are true.
    """
    before, held = scope.env, list(scope.locks)
    after: list[dict[str, Paths]] = []
    locks: list[list[str]] = []
    for n, body in enumerate(bodies):
        scope.env = dict(before)
        scope.locks[:] = held
        count = len(scope.only_if)
        scope.only_if += only_if if n == 0 else ()
        scope.each(body)
        del scope.only_if[count:]
        if not _leaves(body):
            after.append(scope.env)
            locks.append(list(scope.locks))
    scope.locks[:] = [path for path in held if all(path in each for each in locks)]
    scope.env = merged(after) if after else before


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
            return True
        case ast.Compare(comparators=[ast.Name(id="__name__")], ops=[ast.Eq()]):
            return True
    return False


def _main(scope: Scope, body: list[ast.stmt]) -> None:
    """What only a script does is a function of its own."""
    function = scope.reading.module.functions.setdefault(MAIN, Function(MAIN, body[0].lineno))
    Scope(scope.reading, function).run(body)


def _asks(scope: Scope, test: ast.expr) -> tuple[Paths, Paths]:
    """What is known to be missing if this is true, and what is known to be there."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
            return chain(scope, left), FRESH
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]):
            return FRESH, chain(scope, left)
        case ast.Compare(ops=[ast.NotIn()], comparators=[where]):
            return chain(scope, where), FRESH
        case ast.Compare(ops=[ast.In()], comparators=[where]):
            return FRESH, chain(scope, where)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            missing, present = _asks(scope, operand)
            return present, missing
        case ast.Call(func=ast.Name(id="hasattr"), args=[base, ast.Constant(value=str(attr))]):
            return FRESH, stepped(chain(scope, base), f".{attr}")
        case ast.BoolOp(values=values):
            return _asks_all(scope, values)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return FRESH, chain(scope, test)
    return FRESH, FRESH


def _asks_all(scope: Scope, tests: list[ast.expr]) -> tuple[Paths, Paths]:
    asked = [_asks(scope, test) for test in tests]
    missing = tuple(path for paths, _ in asked for path in paths)
    present = tuple(path for _, paths in asked for path in paths)
    return missing, present
