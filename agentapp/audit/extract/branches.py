"""Handlers for ``if``, loops, ``match`` and ``try``: merged variables, and checks made before a write."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from agentapp.audit.extract.assignments import bind_elements, bind_name
from agentapp.audit.extract.chains import find_paths, peek_paths
from agentapp.audit.extract.names import captured_names
from agentapp.audit.extract.paths import FRESH, Paths, add_steps, element_paths, merge_variables
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import MAIN, Function
from agentapp.audit.known_names import looks_like_lock


def run_if(scope: Scope, node: ast.If) -> None:
    if scope.is_module and _is_main(node.test):
        _run_main(scope, node.body)
        scope.run_all(node.orelse)
        return
    scope.eval(node.test)
    missing, present = _find_checks(scope, node.test)
    under = any(looks_like_lock(path) for path in scope.locks)
    start = len(scope.checks)
    scope.checks += [(path, under) for path in missing]
    end = len(scope.checks)
    flags = [path for path in _find_flags(scope, node.test) if path.startswith("s|.")]
    _run_branches(scope, node.body, node.orelse, only_if=flags)
    del scope.checks[start:end]
    if present and _exits(node.body):  # The code after the ``if`` only runs if the object was missing.
        scope.checks += [(path, under) for path in present]


def run_for(scope: Scope, node: ast.For | ast.AsyncFor) -> None:
    bind_elements(scope, node.target, scope.eval(node.iter))
    _run_branches(scope, node.body, node.orelse)


def run_while(scope: Scope, node: ast.While) -> None:
    scope.eval(node.test)
    _run_branches(scope, node.body, node.orelse)


def run_match(scope: Scope, node: ast.Match) -> None:
    parts = element_paths(scope.eval(node.subject))
    for case in node.cases:
        for name in captured_names(case.pattern):
            bind_name(scope, name, parts, "?", case.pattern.lineno)
        if case.guard is not None:
            scope.eval(case.guard)
    _run_branches(scope, *(case.body for case in node.cases))


def run_try(scope: Scope, node: ast.Try) -> None:
    scope.run_all(node.body)
    after = dict(scope.env)
    for handler in node.handlers:
        scope.run_all(handler.body)
        after = merge_variables([after, scope.env])
    scope.env = after
    scope.run_all(node.orelse)
    scope.run_all(node.finalbody)


def _find_flags(scope: Scope, test: ast.expr) -> Paths:
    """The attributes that must be true for the body to run, as in ``if self.debug and x:``."""
    match test:
        case ast.Attribute():
            return peek_paths(scope, test)
        case ast.BoolOp(op=ast.And(), values=values):
            return tuple(path for value in values for path in _find_flags(scope, value))
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=True)]):
            return _find_flags(scope, left)
    return FRESH


def _run_branches(scope: Scope, *bodies: list[ast.stmt], only_if: Sequence[str] = ()) -> None:
    """Run each body on its own copy of the variables, then merge the results.

    After the branches, a lock is held if it is held at the end of all of them. ``only_if`` applies to the
    first body.
    """
    before, held = scope.env, list(scope.locks)
    after: list[dict[str, Paths]] = []
    locks: list[list[str]] = []
    for n, body in enumerate(bodies):
        scope.env = dict(before)
        scope.locks[:] = held
        count = len(scope.only_if)
        scope.only_if += only_if if n == 0 else ()
        scope.run_all(body)
        del scope.only_if[count:]
        if not _exits(body):
            after.append(scope.env)
            locks.append(list(scope.locks))
    scope.locks[:] = [path for path in held if all(path in each for each in locks)]
    scope.env = merge_variables(after) if after else before


def _exits(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
            return True
        case ast.Compare(comparators=[ast.Name(id="__name__")], ops=[ast.Eq()]):
            return True
    return False


def _run_main(scope: Scope, body: list[ast.stmt]) -> None:
    """The statements under ``if __name__ == "__main__"`` become a function of their own."""
    function = scope.reading.module.functions.setdefault(MAIN, Function(MAIN, body[0].lineno))
    Scope(scope.reading, function).run(body)


def _find_checks(scope: Scope, test: ast.expr) -> tuple[Paths, Paths]:
    """The objects that are missing if the test is true, and the objects that exist then."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
            return find_paths(scope, left), FRESH
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]):
            return FRESH, find_paths(scope, left)
        case ast.Compare(ops=[ast.NotIn()], comparators=[where]):
            return find_paths(scope, where), FRESH
        case ast.Compare(ops=[ast.In()], comparators=[where]):
            return FRESH, find_paths(scope, where)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            missing, present = _find_checks(scope, operand)
            return present, missing
        case ast.Call(func=ast.Name(id="hasattr"), args=[base, ast.Constant(value=str(attr))]):
            return FRESH, add_steps(find_paths(scope, base), f".{attr}")
        case ast.BoolOp(values=values):
            return _find_all_checks(scope, values)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return FRESH, find_paths(scope, test)
    return FRESH, FRESH


def _find_all_checks(scope: Scope, tests: list[ast.expr]) -> tuple[Paths, Paths]:
    asked = [_find_checks(scope, test) for test in tests]
    missing = tuple(path for paths, _ in asked for path in paths)
    present = tuple(path for _, paths in asked for path in paths)
    return missing, present
