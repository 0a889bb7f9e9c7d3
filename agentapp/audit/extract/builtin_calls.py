"""Handlers for calls of builtin functions that write, read, copy or return their arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import MappingProxyType

from agentapp.audit.extract.chains import find_paths
from agentapp.audit.extract.passing import pass_arguments
from agentapp.audit.extract.paths import (
    FRESH,
    OWN_MODULE,
    Paths,
    add_steps,
    class_paths,
    copy_paths,
    element_paths,
    limit_paths,
    pair_path,
)
from agentapp.audit.extract.scope import Scope
from agentapp.audit.extract.values import describe_value
from agentapp.audit.facts import Call, join_path


def call_builtin(scope: Scope, node: ast.Call) -> Paths:
    """The default for builtins: the arguments are evaluated and the result is a new object."""
    pass_arguments(scope, node)
    return FRESH


def _setattr(scope: Scope, node: ast.Call) -> Paths:
    match node.args:
        case [base, ast.Constant(value=str(attr)), value]:
            step = f".{attr}"
        case [base, name, value]:
            scope.eval(name)
            step = ".*"
        case _:
            return call_builtin(scope, node)
    scope.eval(value)
    scope.write(add_steps(find_paths(scope, base), step), "attr", node.lineno, describe_value(scope, value))
    return FRESH


def _delattr(scope: Scope, node: ast.Call) -> Paths:
    match node.args:
        case [base, ast.Constant(value=str(attr)), *_]:
            scope.write(add_steps(find_paths(scope, base), f".{attr}"), "attr", node.lineno, "del")
            return FRESH
    return call_builtin(scope, node)


def _getattr(scope: Scope, node: ast.Call) -> Paths:
    match node.args:
        case [base, ast.Constant(value=str(attr)), *rest]:
            found = add_steps(find_paths(scope, base), f".{attr}")
            for other in rest:
                scope.eval(other)
            return found
    return call_builtin(scope, node)


def _globals(scope: Scope, node: ast.Call) -> Paths:
    return call_builtin(scope, node) if node.args else OWN_MODULE


def _vars(scope: Scope, node: ast.Call) -> Paths:
    return find_paths(scope, node.args[0]) if len(node.args) == 1 else call_builtin(scope, node)


def _super(scope: Scope, node: ast.Call) -> Paths:
    return scope.own_object()


def _type(scope: Scope, node: ast.Call) -> Paths:
    match node.args:
        case [base]:
            return class_paths(scope.eval(base))
        case [_, ast.Tuple(elts=bases), *_]:
            for base in bases:
                for path in find_paths(scope, base):
                    made = join_path(path, ".__init_subclass__")
                    scope.function.calls.append(Call(made, node.lineno, tuple(scope.locks)))
    return call_builtin(scope, node)


def _next(scope: Scope, node: ast.Call) -> Paths:
    match node.args:
        case [ast.GeneratorExp() as generator, *_]:
            return element_paths(scope.eval(generator))
    given = pass_arguments(scope, node)
    scope.write(tuple(path for _, path in given[:1]), "next", node.lineno)
    return FRESH


def _one_of(scope: Scope, node: ast.Call) -> Paths:
    """``max(items)`` returns an element of its argument, ``max(a, b)`` one of its arguments."""
    given = [path for where, path in pass_arguments(scope, node) if where.isdigit()]
    return element_paths(limit_paths(given)) if len(node.args) == 1 else limit_paths(given)


def _copy(scope: Scope, node: ast.Call) -> Paths:
    return limit_paths(copy_paths(path for where, path in pass_arguments(scope, node) if where == "0"))


def _enumerate(scope: Scope, node: ast.Call) -> Paths:
    """Pairs whose second item is an element of the argument."""
    return limit_paths(pair_path(path, 1) for where, path in pass_arguments(scope, node) if where == "0")


def _zip(scope: Scope, node: ast.Call) -> Paths:
    return limit_paths(pair_path(path, int(n)) for n, path in pass_arguments(scope, node) if n.isdigit())


BUILTINS: Mapping[str, Callable[[Scope, ast.Call], Paths]] = MappingProxyType(
    {
        "setattr": _setattr,
        "delattr": _delattr,
        "getattr": _getattr,
        "globals": _globals,
        "vars": _vars,
        "super": _super,
        "type": _type,
        "next": _next,
        "list": _copy,
        "dict": _copy,
        "set": _copy,
        "sorted": _copy,
        "reversed": _copy,
        "enumerate": _enumerate,
        "iter": _copy,
        "filter": _copy,
        "zip": _zip,
        "max": _one_of,
        "min": _one_of,
    }
)
