"""The state of the analysis of one function, class or module."""

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
_NEW_OBJECTS = re.compile(r"\(\)|[~^]")  # in a path: the result of a call, a copy or a new container


@dataclass(slots=True)
class Reading:
    """One file, and the handlers for the kinds of nodes in it."""

    module: Module  # the facts, which the handlers fill in
    names: set[str]  # the names that are bound at module level
    statements: Statements
    expressions: Expressions
    with_reads: bool
    has_depends: bool
    dependencies: dict[str, Paths] = field(
        default_factory=dict
    )  # module-level names for annotations with a dependency

    def is_known(self, name: str) -> bool:
        return name in self.names or name not in _BUILTINS

    def bind(self, name: str, value: str, line: int) -> None:
        """Record a module-level name. Of several values, the one of the highest rank is kept."""
        known = self.module.names.get(name)
        if known is None or rank(value) > rank(known[0]):
            self.module.names[name] = (value, line)


class Scope:
    """Goes through the statements of one function, module or class, in order.

    ``env`` maps local variables to paths. A local name that is not in it holds a new object; any other name
    comes from an outer scope. The writes and calls in the body of a class are recorded in the function that
    contains the class.
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
        self.checks: list[tuple[str, bool]] = []  # paths checked for existence; was it under a lock?
        self.only_if: list[str] = []  # attributes of ``self`` that are true here
        self.copied_names: set[str] = set()  # variables that hold a copy or come from one
        # Variable and key of each item of a copy that was replaced by a new object.
        self.replaced_items: set[tuple[str, object]] = set()
        self.returns: set[str] = set()
        self.mentions: set[str] = set()

    def run(self, body: list[ast.stmt]) -> None:
        """Run all statements of a function, then store what it returns and passes on."""
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
        """Evaluate an expression: record its writes and calls, and return the paths of its value."""
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
        """The paths of a variable of an enclosing function; empty if there is none."""
        scope = self.outer
        while scope is not None:
            if scope.class_ is None and not scope.is_module and name in scope.local_names:
                known = scope.env.get(name, FRESH)
                if known and (known[0][0] in "dksc" or known[0] == scope.import_path(name)):
                    return known  # a function, a class, ``self``, ``cls`` or an import
                return (f"f:{scope.function.name}:{name}",)
            scope = scope.outer
        return FRESH

    def import_path(self, name: str) -> str:
        """The path of a name that is imported inside this function."""
        return f"g:{self.function.name}/{name}"

    def own_object(self) -> Paths:
        """The path of ``self`` or ``cls``, also in a function inside the method."""
        around: Scope | None = self
        while around is not None:
            for paths in around.env.values():
                if paths in (("s",), ("c",)):
                    return paths
            around = around.outer
        return ("s",)

    def is_builtin(self, name: str) -> bool:
        """Whether the name refers to a builtin function here."""
        is_bound = name in self.env or name in self.local_names or name in self.reading.names
        return name in _BUILTINS and not is_bound

    def enclosing(self) -> Scope | None:
        """The nearest scope whose variables inner functions can see: not a class and not the module."""
        scope: Scope | None = self
        while scope is not None and (scope.class_ is not None or scope.is_module):
            scope = scope.outer
        return scope

    def enclosing_name(self) -> str:
        enclosing = self.enclosing()
        return enclosing.function.name if enclosing is not None else ""

    def inner_name(self, name: str) -> str:
        """The qualified name of a function or class that is defined here."""
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
        """1 if the code checked before whether the object exists, 2 if it checked under a lock."""
        if not self.checks:
            return 0
        return max((1 + under for asked, under in self.checks if is_about(asked, path)), default=0)
