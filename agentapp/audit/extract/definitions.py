"""Handlers for definitions of functions, lambdas and classes."""

from __future__ import annotations

import ast

from agentapp.audit.extract.dependencies import find_dependencies
from agentapp.audit.extract.names import collect_names
from agentapp.audit.extract.paths import Paths
from agentapp.audit.extract.scope import Scope
from agentapp.audit.extract.values import describe_defaults
from agentapp.audit.facts import Class, Function

_Callable = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_CLASS_METHODS = frozenset(
    {"__new__", "__init_subclass__", "__class_getitem__"}
)  # Their first parameter is the class.


def define_function(scope: Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    decorators = tuple([_find_reference(scope, each) for each in node.decorator_list])
    inner = _open_scope(scope, node, node.name, decorators)
    names = collect_names(node.body)
    inner.globals, inner.nonlocals = names.globals, names.nonlocals
    inner.local_names |= names.bound - names.globals - names.nonlocals
    inner.run(node.body)
    for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
        scope.eval(default)
    if scope.class_ is not None:
        scope.class_.methods += (node.name,)
    elif scope.is_module:
        scope.reading.bind(node.name, "?", node.lineno)
    else:
        path = f"d:{inner.function.name}"
        scope.env[node.name] = (path,)
        if decorators:
            scope.mentions.add(path)


def define_lambda(scope: Scope, node: ast.Lambda) -> Paths:
    """A lambda is assumed to be called where it is written, so under the same locks."""
    inner = _open_scope(scope, node, f"<lambda:{node.lineno}:{node.col_offset}>")
    inner.locks = list(scope.locks)
    inner.returns.update(inner.eval(node.body))
    inner.run([])
    return (f"d:{inner.function.name}",)


def define_class(scope: Scope, node: ast.ClassDef) -> None:
    class_ = Class(
        scope.inner_name(node.name),
        node.lineno,
        bases=tuple(_find_reference(scope, base) for base in node.bases),
        decorators=tuple(_find_reference(scope, each) for each in node.decorator_list),
        keywords={each.arg: (scope.eval(each.value) or ("?",))[0] for each in node.keywords if each.arg},
        outer=scope.enclosing_name(),
    )
    scope.reading.module.classes[class_.name] = class_
    inner = Scope(scope.reading, scope.function, scope, class_)
    inner.local_names = collect_names(node.body).bound
    inner.locks, inner.returns, inner.mentions = scope.locks, scope.returns, scope.mentions
    inner.run_all(node.body)
    if scope.class_ is not None:
        scope.class_.attributes.setdefault(node.name, ("?", node.lineno, False))
    elif scope.is_module:
        scope.reading.bind(node.name, "?", node.lineno)
    else:
        scope.env[node.name] = (f"k:{class_.name}",)


def _find_reference(scope: Scope, node: ast.expr) -> str:
    """The path of a decorator or base class, or ``?`` if it has none."""
    if isinstance(node, ast.Name) and scope.is_builtin(node.id):
        return f"g:{node.id}"
    paths = scope.eval(node)
    return paths[0] if paths else "?"


def _open_scope(scope: Scope, node: _Callable, called: str, decorators: tuple[str, ...] = ()) -> Scope:
    """Make the scope of a function that is defined here. It contains only the parameters yet."""
    function, args = _make_function(scope, node, called, decorators), node.args
    scope.reading.module.functions[function.name] = function
    inner = Scope(scope.reading, function, scope.enclosing())
    inner.local_names = {*function.params, *(arg.arg for arg in (args.vararg, args.kwarg) if arg)}
    inner.env = {param: (f"p:{param}",) for param in (*function.params, function.vararg) if param}
    if scope.reading.has_depends:
        inner.env.update(find_dependencies(scope, args))
    positional = [*args.posonlyargs, *args.args]
    if scope.class_ is not None and positional and "g:staticmethod" not in decorators:
        is_of_class = "g:classmethod" in decorators or called in _CLASS_METHODS
        inner.env[positional[0].arg] = ("c",) if is_of_class else ("s",)
    return inner


def _make_function(scope: Scope, node: _Callable, called: str, decorators: tuple[str, ...]) -> Function:
    args = node.args
    return Function(
        _unique_name(scope, called, node.lineno),
        node.lineno,
        params=tuple([arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]),
        vararg=args.vararg.arg if args.vararg else "",
        defaults=describe_defaults(scope, args),
        decorators=decorators,
        decorator_lines=tuple(each.lineno for each in getattr(node, "decorator_list", ())),
        owner=scope.class_.name if scope.class_ is not None else "",
        outer=scope.enclosing_name(),
        is_async=isinstance(node, ast.AsyncFunctionDef),
    )


def _unique_name(scope: Scope, called: str, line: int) -> str:
    """Overloads, property setters and branches of an ``if`` may define several functions of one name."""
    name = scope.inner_name(called)
    return f"{name}@{line}" if name in scope.reading.module.functions else name
