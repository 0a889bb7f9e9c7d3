"""Describes what an expression produces, as a *value* (see `agentapp.audit.facts`)."""

from __future__ import annotations

import ast

from agentapp.audit.extract.chains import peek_paths
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import ADMITS_SEVERAL, rank

_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_FACTORY_KEYWORDS = frozenset({"default_factory", "factory"})
_MUTABLE_BUILTINS = frozenset({"list", "dict", "set", "bytearray"})


def describe_value(scope: Scope, node: ast.expr) -> str:
    """The value of an expression that was evaluated before: records nothing."""
    match node:
        case ast.Constant(value=None):
            return "N"
        case ast.Constant(value=value):
            return "K" if value else "K0"
        case ast.JoinedStr() | ast.UnaryOp():
            return "K"
        case ast.Tuple(elts=parts):
            return "K" if all(describe_value(scope, part)[0] in "KN" for part in parts) else "T"
        case _ if isinstance(node, _DISPLAYS):
            return "M"
        case ast.Call():
            return _describe_call(scope, node)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            paths = peek_paths(scope, node)
            if paths and paths[0].endswith("|()"):  # a variable that holds the result of a call
                return f"C:{paths[0].removesuffix('|()')}"
            return f"P:{paths[0]}" if paths else "?"
        case ast.IfExp(body=one, orelse=other):
            return max(describe_value(scope, one), describe_value(scope, other), key=rank)
        case ast.BoolOp(values=values):
            return max((describe_value(scope, value) for value in values), key=rank)
        case ast.Await(value=inner) | ast.NamedExpr(value=inner):
            return describe_value(scope, inner)
        case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Add() | ast.BitOr()):
            return "M" if "M" in (describe_value(scope, left), describe_value(scope, right)) else "?"
    return "?"


def _describe_call(scope: Scope, node: ast.Call) -> str:
    paths = peek_paths(scope, node.func)
    if not paths:
        return "M" if isinstance(node.func, ast.Name) and node.func.id in _MUTABLE_BUILTINS else "?"
    if paths[0].endswith("Semaphore") and _admits_several(node):
        return f"C:{paths[0]}#{ADMITS_SEVERAL}"
    for keyword in node.keywords:
        if keyword.arg == "default" and describe_value(scope, keyword.value) == "M":
            return f"C:{paths[0]}#M"
        if keyword.arg in _FACTORY_KEYWORDS:
            return f"C:{paths[0]}#{_describe_factory_result(scope, keyword.value)}"
    return f"C:{paths[0]}"


def _admits_several(semaphore: ast.Call) -> bool:
    """Whether the semaphore admits several threads at once, and so does not work as a lock."""
    match semaphore.args:
        case [ast.Constant(value=1)] | []:
            return False
    return True


def _describe_factory_result(scope: Scope, factory: ast.expr) -> str:
    """The value that calling the factory returns."""
    if isinstance(factory, ast.Lambda):
        return describe_value(scope, factory.body)
    return _describe_call(scope, ast.Call(factory, [], []))


def describe_defaults(scope: Scope, args: ast.arguments) -> dict[str, str]:
    """The defaults that matter later, by parameter: those that may be mutable, and false constants."""
    positional = [*args.posonlyargs, *args.args]
    given = [
        *zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    values = {arg.arg: describe_value(scope, default) for arg, default in given if default}
    return {name: value for name, value in values.items() if value[0] in "MCP" or value == "K0"}
