"""Collects the names that a block of statements binds, before the statements are analysed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Names(NamedTuple):
    bound: set[str]
    globals: set[str]
    nonlocals: set[str]


def collect_names(body: Iterable[ast.stmt]) -> Names:
    """The names that these statements bind, not counting those inside nested functions and classes.

    ``bound`` also contains names that are declared global or nonlocal.
    """
    names = Names(set(), set(), set())
    left: list[Any] = list(body)
    while left:
        node = left.pop()
        kind = type(node)
        note = _BINDING.get(kind)
        if note is not None:
            note(node, names)
        for block in _BLOCKS.get(kind, ()):
            left += getattr(node, block)
    return names


def add_target_names(node: ast.expr, found: set[str]) -> None:
    """Add the names that an assignment to ``node`` binds to ``found``."""
    if isinstance(node, ast.Name):
        found.add(node.id)
    elif isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            add_target_names(part, found)
    elif isinstance(node, ast.Starred):
        add_target_names(node.value, found)


def captured_names(pattern: ast.pattern) -> Iterator[str]:
    """The names that a match pattern binds."""
    for part in ast.walk(pattern):
        if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name:
            yield part.name
        elif isinstance(part, ast.MatchMapping) and part.rest:
            yield part.rest


def _add_assigned(node: ast.Assign, names: Names) -> None:
    for target in node.targets:
        add_target_names(target, names.bound)


def _add_target(node: Any, names: Names) -> None:
    add_target_names(node.target, names.bound)


def _add_defined(node: Any, names: Names) -> None:
    names.bound.add(node.name)


def _add_imported(node: Any, names: Names) -> None:
    names.bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _add_entered(node: Any, names: Names) -> None:
    for item in node.items:
        if item.optional_vars is not None:
            add_target_names(item.optional_vars, names.bound)


def _add_caught(node: ast.ExceptHandler, names: Names) -> None:
    if node.name:
        names.bound.add(node.name)


def _add_matched(node: ast.match_case, names: Names) -> None:
    names.bound.update(captured_names(node.pattern))


_BINDING: Mapping[type[ast.AST], Callable[[Any, Names], None]] = MappingProxyType(
    {
        ast.Assign: _add_assigned,
        ast.AnnAssign: _add_target,
        ast.AugAssign: _add_target,
        ast.For: _add_target,
        ast.AsyncFor: _add_target,
        ast.FunctionDef: _add_defined,
        ast.AsyncFunctionDef: _add_defined,
        ast.ClassDef: _add_defined,
        ast.Import: _add_imported,
        ast.ImportFrom: _add_imported,
        ast.With: _add_entered,
        ast.AsyncWith: _add_entered,
        ast.ExceptHandler: _add_caught,
        ast.match_case: _add_matched,
        ast.Global: lambda node, names: names.globals.update(node.names),
        ast.Nonlocal: lambda node, names: names.nonlocals.update(node.names),
    }
)

_BLOCKS: Mapping[type[ast.AST], tuple[str, ...]] = MappingProxyType(
    {
        ast.If: ("body", "orelse"),
        ast.For: ("body", "orelse"),
        ast.AsyncFor: ("body", "orelse"),
        ast.While: ("body", "orelse"),
        ast.With: ("body",),
        ast.AsyncWith: ("body",),
        ast.Try: ("body", "handlers", "orelse", "finalbody"),
        ast.TryStar: ("body", "handlers", "orelse", "finalbody"),
        ast.ExceptHandler: ("body",),
        ast.Match: ("cases",),
        ast.match_case: ("body",),
    }
)
