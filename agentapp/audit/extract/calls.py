"""The handler for calls: the function, its arguments, and the paths of its result."""

from __future__ import annotations

import ast

from agentapp.audit.extract.builtin_calls import BUILTINS, call_builtin
from agentapp.audit.extract.chains import find_paths
from agentapp.audit.extract.passing import pass_arguments
from agentapp.audit.extract.paths import Paths, copy_paths, element_path, limit_paths, pair_path
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import STEP, Call, join_path

_READING_METHODS = frozenset({"get", "items", "keys", "values", "copy", "index", "count"})
_ELEMENT_METHODS = frozenset(
    {"get", "setdefault", "__getitem__"}
)  # Not `pop`: it removes the element, so the caller has it alone.
_COPY_FUNCTIONS = frozenset(
    {
        "g:copy|.copy",
        "g:copy",
        "g:replace",
        "g:dataclasses|.replace",
        "g:copy|.replace",
        "g:evolve",
        "g:attr|.evolve",
        "g:attrs|.evolve",
    }
)
_COPY_METHODS = frozenset({".copy", ".model_copy", "._replace"})
_NEW_FUNCTIONS = frozenset({"s|.__new__", "c|.__new__", "g:object|.__new__"})
_CHOICE_FUNCTIONS = frozenset({"g:random|.choice", "g:choice", "g:secrets|.choice"})
_CAST_FUNCTIONS = frozenset({"g:cast", "g:typing|.cast"})
_LOCK_METHODS = frozenset({".acquire", ".release", ".enter_context", ".enter_async_context"})
# The last steps of all callees whose result `_special_results` knows.
_SPECIAL_STEPS = frozenset(
    {
        *(path.rpartition(STEP)[2] for path in _COPY_FUNCTIONS),
        *_COPY_METHODS,
        ".__new__",
        ".choice",
        "g:choice",
        ".deepcopy",
        "g:deepcopy",
        "g:cast",
        ".cast",
        *(f".{name}" for name in _READING_METHODS | _ELEMENT_METHODS),
    }
)


def eval_call(scope: Scope, node: ast.Call) -> Paths:
    function, line = node.func, node.lineno
    if isinstance(function, ast.Name) and scope.is_builtin(function.id):
        return BUILTINS.get(function.id, call_builtin)(scope, node)
    callees = find_paths(scope, function)
    args = pass_arguments(scope, node)
    locks, count = tuple(scope.locks), len(node.args) + len(node.keywords)
    results: list[str] = []
    for callee in callees:
        base, _, last = callee.rpartition(STEP)
        if last in _LOCK_METHODS:
            _acquire_or_release(scope, last, base, args)
        lazy = scope.lazy_level(base) if scope.checks and base and last.startswith(".") else 0
        scope.function.calls.append(Call(callee, line, locks, args, lazy, count))
        if last not in _SPECIAL_STEPS:
            results.append(f"{callee}|()")
            continue
        if base and last[1:] in _READING_METHODS:
            scope.read((base,), line)
        is_copy = callee in _COPY_FUNCTIONS or last in _COPY_METHODS
        if not (is_copy and any(map(_replaces_content, node.keywords))):
            results += _special_results(callee, base, last, args)
    return tuple(results) if len(results) < 2 else limit_paths(results)


def _acquire_or_release(scope: Scope, method: str, base: str, args: tuple[tuple[str, str], ...]) -> None:
    """Track ``acquire`` and ``release``. An ``acquire`` is assumed to succeed."""
    if method == ".acquire":
        scope.locks.append(base)
    elif method != ".release":  # An exit stack enters its argument.
        scope.locks += [path for _, path in args[:1]]
    elif base in scope.locks:
        scope.locks.remove(base)


def _replaces_content(keyword: ast.keyword) -> bool:
    """Whether the copy gets new content: ``replace(x, tags=list(x.tags))``, ``x.model_copy(deep=True)``."""
    return keyword.arg == "deep" or isinstance(keyword.value, ast.Call | ast.List | ast.Dict | ast.Set)


def _special_results(callee: str, base: str, last: str, args: tuple[tuple[str, str], ...]) -> list[str]:
    """The paths of the result of copies, casts, `__new__` and methods that return an element."""
    if callee in _COPY_FUNCTIONS:
        return copy_paths(path for _, path in args[:1])
    if base and last[1:] in _ELEMENT_METHODS:
        return [element_path(base)]
    if base and last == ".values":
        return copy_paths([base])
    if base and last == ".items":
        return [pair_path(base, 1)]
    if base and last in _COPY_METHODS:
        return copy_paths([base])
    if callee in _NEW_FUNCTIONS:
        return ["c|()"]
    if callee in _CHOICE_FUNCTIONS:
        return [element_path(path) for where, path in args if where == "0"]
    if callee in _CAST_FUNCTIONS:
        return [path for where, path in args if where == "1"]
    return [] if last.endswith("deepcopy") else [join_path(callee, "()")]
