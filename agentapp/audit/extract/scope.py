"""The state of going through one function, class or module: what its names are, and what was noted of it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentapp.audit.extract.paths import FRESH, Paths, is_about
from agentapp.audit.facts import MAIN, MODULE, Class, Function, Module, Read, Write, rank

Statements = Mapping[type[ast.stmt], Callable[["Scope", Any], None]]
Expressions = Mapping[type[ast.expr], Callable[["Scope", Any], Paths]]

_BUILTINS = frozenset(dir(builtins))
_NEW_OBJECTS = re.compile(r"\(\)|[~^]")  # results, copies and new containers are nobody else's


@dataclass(slots=True)
class Reading:
    """One file, and who follows which kind of node in it."""

    module: Module  # is filled
    names: set[str]  # that are bound at module level
    statements: Statements
    expressions: Expressions
    with_reads: bool
    has_depends: bool
    dependencies: dict[str, Paths] = field(default_factory=dict)  # annotations that have a name

    def is_known(self, name: str) -> bool:
        return name in self.names or name not in _BUILTINS

    def bind(self, name: str, value: str, line: int) -> None:
        """The most telling value a name gets at module level is kept."""
        known = self.module.names.get(name)
        if known is None or rank(value) > rank(known[0]):
            self.module.names[name] = (value, line)


class Scope:
    """Goes through the statements of one function, or of a module or class, in order.

    ``env`` says where the function's own variables come from. A name that is not in it is either
    the function's own and fresh, or comes from outside. A class notes what happens in its body in the
    function that it is defined in.
    """

    __slots__ = (
        "_expressions",
        "_statements",
        "checks",
        "class_",
        "copied_names",
        "env",
        "function",
        "globals",
        "is_module",
        "local_names",
        "locks",
        "mentions",
        "nonlocals",
        "only_if",
        "outer",
        "reading",
        "replaced_items",
        "returns",
    )

    def __init__(
        self, reading: Reading, function: Function, outer: Scope | None = None, class_: Class | None = None
    ) -> None:
        self.reading, self.function, self.outer, self.class_ = reading, function, outer, class_
        self._statements, self._expressions = reading.statements, reading.expressions
        self.is_module = class_ is None and function.name in (MODULE, MAIN)
        self.local_names: set[str] = set()
        self.env: dict[str, Paths] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.locks: list[str] = []
        self.checks: list[tuple[str, bool]] = []  # whether it is there yet, and if asked under a lock
        self.only_if: list[str] = []  # the attributes of the method's own object that were found to be true
        self.copied_names: set[str] = set()  # variables that are, or come from, a copy
        self.replaced_items: set[tuple[str, object]] = (
            set()
        )  # what was put into a variable's copy, by its key
        self.returns: set[str] = set()
        self.mentions: set[str] = set()

    def run(self, body: list[ast.stmt]) -> None:
        """All of a function's statements; then it is known what it returns and mentions."""
        self.run_all(body)
        self.function.returns = tuple(sorted(self.returns))
        self.function.mentions = tuple(sorted(self.mentions))

    def run_all(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.run_statement(statement)

    def run_statement(self, node: ast.stmt) -> None:
        follow = self._statements.get(type(node))
        if follow is not None:
            follow(self, node)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(child)

    def eval(self, node: ast.expr | None) -> Paths:
        """Where the value comes from; what happens on the way is noted."""
        if node is None or type(node) is ast.Constant:
            return FRESH
        follow = self._expressions.get(type(node))
        if follow is not None:
            return follow(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
        return FRESH

    def look_up(self, name: str) -> Paths:
        if name in self.env:
            return self.env[name]
        if name in self.local_names and self.class_ is None:
            return FRESH
        if name in self.globals or self.is_module:
            return (f"g:{name}",) if self.reading.is_known(name) else FRESH
        return self.enclosing_paths(name) or ((f"g:{name}",) if self.reading.is_known(name) else FRESH)

    def enclosing_paths(self, name: str) -> Paths:
        """A variable of a function around this one."""
        scope = self.outer
        while scope is not None:
            if scope.class_ is None and not scope.is_module and name in scope.local_names:
                known = scope.env.get(name, FRESH)
                if known and (known[0][0] in "dksc" or known[0] == scope.import_path(name)):
                    return known  # a function, a class, the method's own object, or something imported
                return (f"f:{scope.function.name}:{name}",)
            scope = scope.outer
        return FRESH

    def import_path(self, name: str) -> str:
        """The path of something that is imported inside a function."""
        return f"g:{self.function.name}/{name}"

    def own_object(self) -> Paths:
        """The method's own object or class, also from a function inside the method."""
        around: Scope | None = self
        while around is not None:
            for paths in around.env.values():
                if paths in (("s",), ("c",)):
                    return paths
            around = around.outer
        return ("s",)

    def is_not_builtin(self, name: str) -> bool:
        """Whether it is something else than Python's own function of that name."""
        return (
            name in self.env
            or name in self.local_names
            or name not in _BUILTINS
            or name in self.reading.names
        )

    def enclosing(self) -> Scope | None:
        """The function whose variables those inside can see: not a class, and not the module."""
        scope: Scope | None = self
        while scope is not None and (scope.class_ is not None or scope.is_module):
            scope = scope.outer
        return scope

    def enclosing_name(self) -> str:
        enclosing = self.enclosing()
        return enclosing.function.name if enclosing is not None else ""

    def inner_name(self, name: str) -> str:
        """What a function or class that is defined here is called in the whole module."""
        if self.class_ is not None:
            return f"{self.class_.name}.{name}"
        return name if self.is_module else f"{self.function.name}.{name}"

    def write(self, paths: Paths, how: str, line: int, value: str = "?", put: Paths = FRESH) -> None:
        for path in paths:
            lazy, source = self.lazy_level(path), put[0] if put else ""
            locks, only_if = tuple(self.locks), tuple(self.only_if)
            self.function.writes.append(Write(path, how, line, locks, lazy, value, source, only_if))

    def read(self, paths: Paths, line: int) -> None:
        if self.reading.with_reads:
            locks = tuple(self.locks)
            for path in paths:
                if path[0] in "gfsc" and not _NEW_OBJECTS.search(path):
                    self.function.reads.append(Read(path, line, locks))

    def lazy_level(self, path: str) -> int:
        """1 if it was asked before whether this is there yet, 2 if that was asked under a lock."""
        if not self.checks:
            return 0
        return max((1 + under for asked, under in self.checks if is_about(asked, path)), default=0)
