"""Calls: what is called with what, and where the result comes from."""

from __future__ import annotations

import ast

from agentapp.audit.extract.builtin_calls import BUILTINS, any_builtin
from agentapp.audit.extract.chains import chain
from agentapp.audit.extract.passing import arguments
from agentapp.audit.extract.paths import Paths, copies, element, paired, short
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import STEP, Call, joined

_READING = frozenset({"get", "items", "keys", "values", "copy", "index", "count"})
_ELEMENT_OF = frozenset({"get", "setdefault", "__getitem__"})  # not `pop`: who took it out has it alone
_COPY = frozenset(
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
_COPIES_ITSELF = frozenset({".copy", ".model_copy", "._replace"})
_NEW = frozenset({"s|.__new__", "c|.__new__", "g:object|.__new__"})
_CHOICE = frozenset({"g:random|.choice", "g:choice", "g:secrets|.choice"})
_CAST = frozenset({"g:cast", "g:typing|.cast"})
_LOCKING = frozenset({".acquire", ".release", ".enter_context", ".enter_async_context"})
# The last step of all those whose result is known to be something else than the result of a call.
_SPECIAL = frozenset(
    {
        *(path.rpartition(STEP)[2] for path in _COPY),
        *_COPIES_ITSELF,
        ".__new__",
        ".choice",
        "g:choice",
        ".deepcopy",
        "g:deepcopy",
        "g:cast",
        ".cast",
        *(f".{name}" for name in _READING | _ELEMENT_OF),
    }
)


def call(scope: Scope, node: ast.Call) -> Paths:
    function, line = node.func, node.lineno
    if isinstance(function, ast.Name) and not scope.is_ours(function.id):
        return BUILTINS.get(function.id, any_builtin)(scope, node)
    callees = chain(scope, function)
    args = arguments(scope, node)
    locks, count = tuple(scope.locks), len(node.args) + len(node.keywords)
    results: list[str] = []
    for callee in callees:
        base, _, last = callee.rpartition(STEP)
        if last in _LOCKING:
            _take_or_give_back(scope, last, base, args)
        lazy = scope.lazy(base) if scope.asked and base and last.startswith(".") else 0
        scope.function.calls.append(Call(callee, line, locks, args, lazy, count))
        if last not in _SPECIAL:
            results.append(f"{callee}|()")
            continue
        if base and last[1:] in _READING:
            scope.read((base,), line)
        is_copy = callee in _COPY or last in _COPIES_ITSELF
        if not (is_copy and any(map(_is_renewed, node.keywords))):
            results += _special(callee, base, last, args)
    return tuple(results) if len(results) < 2 else short(results)


def _take_or_give_back(scope: Scope, method: str, base: str, args: tuple[tuple[str, str], ...]) -> None:
    """Held from here on, as if it were always given: whoever does not get it had better not go on."""
    if method == ".acquire":
        scope.locks.append(base)
    elif method != ".release":  # an exit stack enters what it is given
        scope.locks += [path for _, path in args[:1]]
    elif base in scope.locks:
        scope.locks.remove(base)


def _is_renewed(keyword: ast.keyword) -> bool:
    """``replace(x, tags=list(x.tags))``, ``x.model_copy(deep=True)``: what can be changed is new."""
    return keyword.arg == "deep" or isinstance(keyword.value, ast.Call | ast.List | ast.Dict | ast.Set)


def _special(callee: str, base: str, last: str, args: tuple[tuple[str, str], ...]) -> list[str]:
    """The results of copies, casts and `__new__`, and of methods that give what is in a container."""
    if callee in _COPY:
        return copies(path for _, path in args[:1])
    if base and last[1:] in _ELEMENT_OF:
        return [element(base)]
    if base and last == ".values":
        return copies([base])
    if base and last == ".items":
        return [paired(base, 1)]
    if base and last in _COPIES_ITSELF:
        return copies([base])
    if callee in _NEW:
        return ["c|()"]
    if callee in _CHOICE:
        return [element(path) for where, path in args if where == "0"]
    if callee in _CAST:
        return [path for where, path in args if where == "1"]
    return [] if last.endswith("deepcopy") else [joined(callee, "()")]
