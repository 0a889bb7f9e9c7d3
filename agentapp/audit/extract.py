"""Pass one: reads a file and says what it defines and what its functions do. Nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from agentapp.audit.facts import MAIN, MODULE, STEP, Call, Class, Function, Module, Read, Write, joined
from agentapp.audit.known import is_lockish

Paths = tuple[str, ...]
FRESH: Final[Paths] = ()
MOST_PATHS, MOST_STEPS = 4, 7

BUILTINS = frozenset(dir(builtins))
READING = frozenset({"get", "items", "keys", "values", "copy", "index", "count"})
ELEMENT_OF = frozenset({"get", "setdefault", "values", "items", "__getitem__"})
SPECIAL = frozenset(
    {
        ".copy",
        "g:copy",
        ".deepcopy",
        "g:deepcopy",
        "g:cast",
        ".cast",
        *(f".{name}" for name in READING | ELEMENT_OF),
    }
)
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
COPIES = frozenset({"list", "dict", "set", "sorted", "reversed", "enumerate", "iter", "filter"})
READ_FOR = (b"ock", b"emaphore", b"ondition", b"utex", b"cache")  # only for these it matters who reads


def extract(source: bytes, name: str, path: str, *, is_package: bool = False) -> Module:
    """Raises `SyntaxError` or `ValueError` if that is no Python."""
    tree = ast.parse(source)
    module = Module(name, path, is_package)
    with_reads = any(word in source for word in READ_FOR)
    _ModuleReader(module, with_reads=with_reads, has_depends=b"Depends" in source).read(tree)
    return module


class _ModuleReader:
    def __init__(self, module: Module, *, with_reads: bool, has_depends: bool) -> None:
        self.module, self.with_reads, self.has_depends = module, with_reads, has_depends
        self.names: set[str] = set()
        self.dependencies: dict[str, Paths] = {}  # annotations that have a name

    def read(self, tree: ast.Module) -> None:
        self.names |= bound_names(tree.body)
        function = Function(MODULE, 1)
        self.module.functions[MODULE] = function
        _Body(self, function, None, "").run(tree.body)

    def is_known(self, name: str) -> bool:
        return name in self.names or name not in BUILTINS

    def bind(self, name: str, value: str, line: int) -> None:
        """The most telling value a name gets at module level: what is changeable, else what is made."""
        known = self.module.names.get(name)
        if known is None or _rank(value) > _rank(known[0]):
            self.module.names[name] = (value, line)


def _rank(value: str) -> int:
    return "?NKTPCM".find(value[0])


def bound_names(body: Iterable[ast.stmt], declared: dict[str, set[str]] | None = None) -> set[str]:
    """Every name that is bound in these statements, but not inside functions and classes among them.

    Those that are declared global or nonlocal are put into ``declared``.
    """
    found: set[str] = set()
    left: list[Any] = list(body)
    while left:
        node = left.pop()
        kind = type(node)
        if kind is ast.Assign:
            for target in node.targets:
                _targets(target, found)
        elif kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            found.add(node.name)
        elif kind in (ast.AugAssign, ast.AnnAssign):
            _targets(node.target, found)
        elif kind in (ast.Import, ast.ImportFrom):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif kind in (ast.Global, ast.Nonlocal):
            if declared is not None:
                declared.setdefault("global" if kind is ast.Global else "nonlocal", set()).update(node.names)
        elif kind in (ast.For, ast.AsyncFor):
            _targets(node.target, found)
            left += node.body
            left += node.orelse
        elif kind in (ast.If, ast.While):
            left += node.body
            left += node.orelse
        elif kind in (ast.With, ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    _targets(item.optional_vars, found)
            left += node.body
        elif kind in (ast.Try, ast.TryStar):
            left += node.body
            left += node.orelse
            left += node.finalbody
            for handler in node.handlers:
                if handler.name:
                    found.add(handler.name)
                left += handler.body
        elif kind is ast.Match:
            for case in node.cases:
                found.update(
                    part.name
                    for part in ast.walk(case.pattern)
                    if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name
                )
                left += case.body
    return found


def _targets(node: Any, found: set[str]) -> None:
    kind = type(node)
    if kind is ast.Name:
        found.add(node.id)
    elif kind in (ast.Tuple, ast.List):
        for part in node.elts:
            _targets(part, found)
    elif kind is ast.Starred:
        _targets(node.value, found)


class _Body:
    """Goes through the statements of one function, or of a module or class, in order.

    ``env`` says where the function's own variables come from. A name that is not in it is either
    the function's own and fresh, or comes from outside.
    """

    def __init__(
        self,
        reader: _ModuleReader,
        function: Function,
        outer: _Body | None,
        owner: str,
        class_: Class | None = None,
    ) -> None:
        self.reader, self.function, self.outer = reader, function, outer
        self.owner, self.class_ = owner, class_
        self.is_module = function.name in (MODULE, MAIN)
        self.own: set[str] = set()
        self.env: dict[str, Paths] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.locks: list[str] = []
        self.asked: list[tuple[str, bool]] = []  # whether it is there yet, and if asked under a lock
        self.copied: set[str] = set()  # variables that are, or come from, a copy
        self.stored: set[tuple[str, object]] = set()  # what was put into a variable's copy, by its key
        self.returns: set[str] = set()
        self.mentions: set[str] = set()

    # -- functions and classes

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.do(statement)
        self.function.returns = tuple(sorted(self.returns))
        self.function.mentions = tuple(sorted(self.mentions))

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = [self._decorator(each) for each in node.decorator_list]
        inner = self._nested(node, tuple(decorators))
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
            self.eval(default)
        if self.class_ is not None:
            self.class_.methods += (node.name,)
        elif not self.is_module:
            self.env[node.name] = (f"d:{inner.name}",)
            if decorators:
                self.mentions.add(f"d:{inner.name}")
        else:
            self.reader.bind(node.name, "?", node.lineno)

    def _decorator(self, node: ast.expr) -> str:
        """``PATH`` or ``PATH|()``; ``?`` if it is something else."""
        if isinstance(node, ast.Name) and not self._is_ours(node.id):
            return f"g:{node.id}"
        paths = self.eval(node)
        return paths[0] if paths else "?"

    def _nested(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, decorators: tuple[str, ...] = ()
    ) -> Function:
        called = (
            node.name if not isinstance(node, ast.Lambda) else f"<lambda:{node.lineno}:{node.col_offset}>"
        )
        prefix = f"{self.owner}." if self.class_ is not None else self._prefix()
        name = f"{prefix}{called}"
        if name in self.reader.module.functions:  # overloads, properties' setters, branches of an if
            name = f"{name}@{node.lineno}"
        args = node.args
        params = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        every = [*params, *(arg.arg for arg in args.kwonlyargs)]
        function = Function(
            name,
            node.lineno,
            params=tuple(every),
            defaults=_defaults(args, self),
            decorators=decorators,
            decorator_lines=tuple(each.lineno for each in getattr(node, "decorator_list", ())),
            owner=self.owner if self.class_ is not None else "",
            outer=self._outer_name(),
            is_async=isinstance(node, ast.AsyncFunctionDef),
        )
        self.reader.module.functions[name] = function
        body = _Body(self.reader, function, self._enclosing(), "")
        body.own = {*every, *(arg.arg for arg in (args.vararg, args.kwarg) if arg)}
        body.env = {param: (f"p:{param}",) for param in every}
        if self.reader.has_depends:
            body.env.update(self._depends(args))
        is_static = "g:staticmethod" in decorators
        if self.class_ is not None and params and not is_static:
            is_class = "g:classmethod" in decorators or called in (
                "__new__",
                "__init_subclass__",
                "__class_getitem__",
            )
            body.env[params[0]] = ("c",) if is_class else ("s",)
        if isinstance(node, ast.Lambda):
            body.locks = list(self.locks)
            body.returns.update(body.eval(node.body))
            body.run([])
        else:
            declared: dict[str, set[str]] = {}
            names = bound_names(node.body, declared)
            body.globals, body.nonlocals = declared.get("global", set()), declared.get("nonlocal", set())
            body.own |= names - body.globals - body.nonlocals
            body.run(node.body)
        return function

    def _depends(self, args: ast.arguments) -> Iterator[tuple[str, Paths]]:
        """The parameters for which a framework calls a function: ``Depends(f)``, default or annotation."""
        positional = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
        for arg, default in [
            *zip(positional, defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]:
            for node in (default, arg.annotation):
                found = self._dependency(node)
                if found:
                    yield arg.arg, found

    def _dependency(self, node: ast.expr | None) -> Paths:
        match node:
            case ast.Call(func=ast.Name(id="Depends") | ast.Attribute(attr="Depends"), args=[inner, *_]):
                return stepped(self._quiet(inner), "()")
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=parts)):
                return next((found for part in parts if (found := self._dependency(part))), FRESH)
            case ast.Name(id=name):
                return self.reader.dependencies.get(name, FRESH)
        return FRESH

    def _prefix(self) -> str:
        return "" if self.is_module else f"{self.function.name}."

    def _outer_name(self) -> str:
        body: _Body | None = self
        while body is not None and body.class_ is not None:
            body = body.outer
        return body.function.name if body is not None and not body.is_module else ""

    def _enclosing(self) -> _Body | None:
        """The function whose variables those inside can see: not a class, and not the module."""
        body: _Body | None = self
        while body is not None and (body.class_ is not None or body.is_module):
            body = body.outer
        return body

    def define_class(self, node: ast.ClassDef) -> None:
        name = f"{self.owner}.{node.name}" if self.class_ is not None else f"{self._prefix()}{node.name}"
        class_ = Class(
            name,
            node.lineno,
            bases=tuple(self._decorator(base) for base in node.bases),
            decorators=tuple(self._decorator(each) for each in node.decorator_list),
            keywords={each.arg: (self.eval(each.value) or ("?",))[0] for each in node.keywords if each.arg},
            outer=self._outer_name(),
        )
        self.reader.module.classes[name] = class_
        body = _Body(self.reader, self.function, self, name, class_)
        body.is_module = False
        body.own = bound_names(node.body)
        body.locks = self.locks
        body.returns, body.mentions = self.returns, self.mentions
        for statement in node.body:
            body.do(statement)
        if self.class_ is None and self.is_module:
            self.reader.bind(node.name, "?", node.lineno)
        elif self.class_ is None:
            self.env[node.name] = (f"k:{name}",)
        else:
            self.class_.attributes.setdefault(node.name, ("?", node.lineno, False))

    # -- what happened

    def write(self, paths: Paths, how: str, line: int, value: str = "?") -> None:
        for path in paths:
            lazy = max((1 + under for asked, under in self.asked if _is_about(asked, path)), default=0)
            self.function.writes.append(Write(path, how, line, tuple(self.locks), lazy, value))

    def read(self, paths: Paths, line: int) -> None:
        if self.reader.with_reads:
            locks = tuple(self.locks)
            for path in paths:
                if path[0] in "gfsc" and "()" not in path and "~" not in path:
                    self.function.reads.append(Read(path, line, locks))

    # -- statements

    def do(self, node: ast.stmt) -> None:
        handler = _STATEMENTS.get(type(node))
        if handler is not None:
            handler(self, node)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(child)

    def each(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.do(statement)

    def branches(self, *bodies: list[ast.stmt]) -> None:
        """Whichever of them ran: afterwards a variable may be what any of them made of it."""
        before, held = self.env, list(self.locks)
        after: list[dict[str, Paths]] = []
        for body in bodies:
            self.env = dict(before)
            self.locks[:] = held
            self.each(body)
            if not _leaves(body):
                after.append(self.env)
        self.locks[:] = held
        self.env = _merged(after) if after else before

    def assign(self, node: ast.Assign) -> None:
        paths, value = self.eval(node.value), self.value_of(node.value)
        first = node.targets[0]
        if self.is_module and isinstance(node.value, ast.Subscript) and isinstance(first, ast.Name):
            self.reader.dependencies[first.id] = self._dependency(node.value)
        for target in node.targets:
            if paths and all(path.endswith("~") for path in paths):
                _targets(target, self.copied)
            self.bind(target, paths, value, node.value)

    def ann_assign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            if self.class_ is not None and isinstance(node.target, ast.Name):
                self.class_.attributes.setdefault(node.target.id, ("?", node.lineno, True))
            return
        self.bind(
            node.target,
            self.eval(node.value),
            self.value_of(node.value),
            node.value,
            annotated=node.annotation,
        )

    def bind(
        self,
        target: ast.expr,
        paths: Paths,
        value: str,
        node: ast.expr | None = None,
        *,
        annotated: ast.expr | None = None,
    ) -> None:
        line = target.lineno
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.mentions.update(path for path in paths if path[0] in "df")
        match target:
            case ast.Name(id=name):
                self._bind_name(name, paths, value, line, annotated)
            case ast.Attribute(value=base, attr=attr):
                self.write(stepped(self.chain(base), f".{attr}"), "attr", line, value)
            case ast.Subscript(value=base, slice=key):
                self.eval(key)
                self.write(self.chain(base), "item", line, value)
                if (
                    isinstance(base, ast.Name)
                    and isinstance(key, ast.Constant)
                    and all(path.endswith("~") for path in paths)
                ):
                    self.stored.add((base.id, key.value))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == len(parts) else None
                for n, part in enumerate(parts):
                    if values is not None and not isinstance(values[n], ast.Starred):
                        self.bind(part, self.chain(values[n]), self.value_of(values[n]), values[n])
                    else:
                        self.bind(part, stepped(paths, "[]"), "?")
            case ast.Starred(value=inner):
                self.bind(inner, FRESH, "M")

    def _bind_name(self, name: str, paths: Paths, value: str, line: int, annotated: ast.expr | None) -> None:
        if self.class_ is not None:
            is_shared = annotated is not None and "ClassVar" in ast.dump(annotated)
            self.class_.attributes[name] = (value, line, annotated is not None and not is_shared)
        elif self.is_module:
            if self.function.name == MODULE:
                self.reader.bind(name, value, line)
        elif name in self.globals:
            self.write((f"g:{name}",), "rebind", line, value)
        elif name in self.nonlocals:
            self.write(self._free(name), "rebind", line, value)
        else:
            self.env[name] = paths
            known = self.function.locals.get(name)
            if known is None or _rank(value) > _rank(known):
                self.function.locals[name] = value

    def aug_assign(self, node: ast.AugAssign) -> None:
        self.eval(node.value)
        target = node.target
        line = node.lineno
        if not isinstance(target, ast.Name):
            self.read(self.chain(target), line)
            self.bind(target, FRESH, "?")
        elif target.id in self.globals or target.id in self.nonlocals:
            self._rebind(target.id, line)
        elif self.class_ is None and not self.is_module:
            self.write(self.env.get(target.id, FRESH), "aug", line, self.value_of(node.value))

    def _rebind(self, name: str, line: int) -> None:
        self.write((f"g:{name}",) if name in self.globals else self._free(name), "rebind", line, "+")

    def delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            match target:
                case ast.Subscript(value=base, slice=key):
                    self.eval(key)
                    self.write(self.chain(base), "item", target.lineno, "del")
                case ast.Attribute(value=base, attr=attr):
                    self.write(stepped(self.chain(base), f".{attr}"), "attr", target.lineno, "del")
                case ast.Name(id=name):
                    self.env.pop(name, None)

    def if_(self, node: ast.If) -> None:
        if self.is_module and self.class_ is None and _is_main(node.test):
            self._main(node.body)
            self.each(node.orelse)
            return
        self.eval(node.test)
        missing, present = self._asks(node.test)
        count = len(self.asked)
        under = any(is_lockish(path) for path in self.locks)
        self.asked += [(path, under) for path in missing]
        before = len(self.asked)
        self.branches(node.body, node.orelse)
        del self.asked[count:before]
        if present and _leaves(node.body):
            self.asked += [(path, under) for path in present]

    def _main(self, body: list[ast.stmt]) -> None:
        functions = self.reader.module.functions
        function = functions.setdefault(MAIN, Function(MAIN, body[0].lineno))
        _Body(self.reader, function, None, "").run(body)

    def _asks(self, test: ast.expr) -> tuple[list[str], list[str]]:
        """What is known to be missing if this is true, and what is known to be there."""
        missing: list[str] = []
        present: list[str] = []
        match test:
            case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
                missing += self.chain(left)
            case ast.Compare(
                left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]
            ):
                present += self.chain(left)
            case ast.Compare(ops=[ast.NotIn()], comparators=[where]):
                missing += self.chain(where)
            case ast.Compare(ops=[ast.In()], comparators=[where]):
                present += self.chain(where)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                present_inside, missing_inside = self._asks(operand)
                missing += missing_inside
                present += present_inside
            case ast.Call(func=ast.Name(id="hasattr"), args=[base, ast.Constant(value=str(attr))]):
                present += stepped(self.chain(base), f".{attr}")
            case ast.BoolOp(values=values):
                for value in values:
                    more = self._asks(value)
                    missing += more[0]
                    present += more[1]
            case ast.Name() | ast.Attribute() | ast.Subscript():
                present += self.chain(test)
        return missing, present

    def for_(self, node: ast.For | ast.AsyncFor) -> None:
        paths = self.eval(node.iter)
        if any("~" in path for path in paths):
            _targets(node.target, self.copied)
        self.bind(node.target, tuple(_element(path) for path in paths), "?")
        self.branches([*node.body], node.orelse)

    def while_(self, node: ast.While) -> None:
        self.eval(node.test)
        self.branches(node.body, node.orelse)

    def try_(self, node: ast.Try) -> None:
        self.each(node.body)
        after = dict(self.env)
        for handler in node.handlers:
            self.each(handler.body)
            after = _merged([after, self.env])
        self.env = after
        self.each(node.orelse)
        self.each(node.finalbody)

    def with_(self, node: ast.With | ast.AsyncWith) -> None:
        count = len(self.locks)
        for item in node.items:
            paths = (
                self.chain(item.context_expr)
                if _is_chain(item.context_expr)
                else self.eval(item.context_expr)
            )
            self.locks += paths[:1]
            if item.optional_vars is not None:
                self.bind(item.optional_vars, stepped(paths, ".__enter__", "()"), "?")
        self.each(node.body)
        del self.locks[count:]

    def return_(self, node: ast.Return) -> None:
        if node.value is not None:
            self.returns.update(self.mentioned(node.value))

    def expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            match node.value.func:
                case ast.Attribute(value=base, attr="acquire"):
                    self.locks += self.chain(base)[:1]
                case ast.Attribute(attr="enter_context" | "enter_async_context"):
                    self.locks += [path for arg in node.value.args[:1] for path in self.chain(arg)[:1]]
                case ast.Attribute(value=base, attr="release"):
                    for path in self.chain(base)[:1]:
                        if path in self.locks:
                            self.locks.remove(path)
        self.eval(node.value)

    def import_(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self._import(name, alias.name if alias.asname else name, "")

    def import_from(self, node: ast.ImportFrom) -> None:
        module = self.reader.module
        base = node.module or ""
        if node.level:
            parts = module.name.split(".")
            keep = len(parts) - node.level + (1 if module.is_package else 0)
            base = ".".join([*parts[: max(keep, 0)], *([base] if base else [])])
        for alias in node.names:
            if alias.name == "*":
                module.stars += (base,)
            else:
                self._import(alias.asname or alias.name, base, alias.name)

    def _import(self, name: str, base: str, what: str) -> None:
        if self.is_module or self.class_ is not None:
            self.reader.module.imports[name] = (base, what)
        else:
            local = f"{self.function.name}/{name}"
            self.reader.module.imports[local] = (base, what)
            self.env[name] = (f"g:{local}",)
            self.own.add(name)

    def match_(self, node: ast.Match) -> None:
        self.eval(node.subject)
        self.branches(*(case.body for case in node.cases))

    # -- expressions

    def eval(self, node: ast.expr | None) -> Paths:
        """Where the value comes from; what happens on the way is noted."""
        if node is None:
            return FRESH
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            return handler(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
            elif isinstance(child, ast.comprehension):
                self._comprehension(child)
        return FRESH

    def chain(self, node: ast.expr) -> Paths:
        """The same for names, attributes and items, without noting that it was read."""
        kind: Any = type(node)
        if kind is ast.Name:
            return self._name(node.id)  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute):
            paths, attr = self.chain(node.value), node.attr
            if not paths or attr == "__dict__":
                return paths
            if attr == "__class__":
                return tuple("c" if path == "s" else joined(path, ".__class__") for path in paths)
            return stepped(paths, f".{attr}")
        if isinstance(node, ast.Subscript):
            base, key = node.value, node.slice
            self.eval(key)
            if (
                isinstance(base, ast.Name)
                and isinstance(key, ast.Constant)
                and (base.id, key.value) in self.stored
            ):
                return FRESH
            paths = self.chain(base)
            if isinstance(key, ast.Slice):
                return stepped(paths, "~")
            return tuple(_element(path) for path in paths)
        return self.eval(node)

    def _name(self, name: str) -> Paths:
        if name in self.env:
            return self.env[name]
        if name in self.own and self.class_ is None:
            return FRESH
        if name in self.globals or self.is_module:
            return (f"g:{name}",) if self.reader.is_known(name) else FRESH
        return self._free(name) or ((f"g:{name}",) if self.reader.is_known(name) else FRESH)

    def _free(self, name: str) -> Paths:
        """A variable of a function around this one."""
        body = self.outer
        while body is not None:
            if body.class_ is None and not body.is_module and name in body.own:
                known = body.env.get(name, FRESH)
                if known and known[0][0] in "dksc":  # a function, a class, or the method's own object
                    return known
                return (f"f:{body.function.name}:{name}",)
            body = body.outer
        return FRESH

    def named(self, node: ast.expr) -> Paths:
        paths = self.chain(node)
        if paths and self.reader.with_reads:
            root: Any = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if not (isinstance(root, ast.Name) and self._is_taken_out(root.id)):
                self.read(paths, node.lineno)
        return paths

    def _is_taken_out(self, name: str) -> bool:
        """A variable for a copy, or for something that was in a container: that one is not read again."""
        return name in self.copied or any("[]" in path for path in self.env.get(name, FRESH))

    def mentioned(self, node: ast.expr) -> Paths:
        """The value is passed on: if it is a function, somebody else may call it."""
        paths = self.eval(node)
        for path in paths:
            if path[0] in "gdfs" and not path.endswith(("[]", "~")):
                self.mentions.add(path)
        return paths

    def call(self, node: ast.Call) -> Paths:
        function = node.func
        line = node.lineno
        if isinstance(function, ast.Name) and not self._is_ours(function.id):
            return self._builtin(function.id, node)
        callees = self.chain(function)
        args = tuple(self._args(node))
        locks, count = tuple(self.locks), len(node.args) + len(node.keywords)
        results: list[str] = []
        for callee in callees:
            lazy = self._lazy_call(callee) if self.asked else 0
            self.function.calls.append(Call(callee, line, locks, args, lazy, count))
            base, _, last = callee.rpartition(STEP)
            if last not in SPECIAL:
                results.append(f"{callee}|()")
                continue
            if base and last[1:] in READING:
                self.read((base,), line)
            if callee in ("g:copy|.copy", "g:copy"):
                results += [joined(path, "~") for _, path in args[:1]]
            elif base and last[1:] in ELEMENT_OF:
                results.append(_element(base))
            elif base and last == ".copy":
                results.append(joined(base, "~"))
            elif callee in ("g:cast", "g:typing|.cast"):
                results += [path for where, path in args if where == "1"]
            elif not last.endswith("deepcopy"):
                results.append(joined(callee, "()"))
        return tuple(results) if len(results) < 2 else short(results)

    def _lazy_call(self, callee: str) -> int:
        base, _, last = callee.rpartition(STEP)
        if not base or not last.startswith("."):
            return 0
        return max((1 + under for asked, under in self.asked if _is_about(asked, base)), default=0)

    def _is_ours(self, name: str) -> bool:
        return name in self.env or name in self.own or name not in BUILTINS or name in self.reader.names

    def _args(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        for n, arg in enumerate(node.args):
            inner = arg.value if isinstance(arg, ast.Starred) else arg
            for path in self.mentioned(inner):
                yield ("*" if isinstance(arg, ast.Starred) else str(n)), path
        for keyword in node.keywords:
            for path in self.mentioned(keyword.value):
                yield keyword.arg or "**", path

    def _builtin(self, name: str, node: ast.Call) -> Paths:
        args = node.args
        match name, args:
            case "setattr", [base, ast.Constant(value=str(attr)), value]:
                self.eval(value)
                self.write(stepped(self.chain(base), f".{attr}"), "attr", node.lineno, self.value_of(value))
                return FRESH
            case "setattr", [base, attr, value]:
                self.eval(attr), self.eval(value)
                self.write(stepped(self.chain(base), ".*"), "attr", node.lineno, self.value_of(value))
                return FRESH
            case "delattr", [base, ast.Constant(value=str(attr)), *_]:
                self.write(stepped(self.chain(base), f".{attr}"), "attr", node.lineno, "del")
                return FRESH
            case "getattr", [base, ast.Constant(value=str(attr)), *rest]:
                found = stepped(self.chain(base), f".{attr}")
                for other in rest:
                    self.eval(other)
                return found
            case "globals", []:
                return ("g:",)
            case "vars", [base]:
                return self.chain(base)
            case "super", _:
                return ("s",) if self._self() != "c" else ("c",)
            case "type", [base]:
                return tuple("c" if path == "s" else joined(path, ".__class__") for path in self.eval(base))
            case "type", [_, ast.Tuple(elts=bases), *_]:
                for base in bases:
                    for path in self.chain(base):
                        made = joined(path, ".__init_subclass__")
                        self.function.calls.append(Call(made, node.lineno, tuple(self.locks)))
            case "next", [ast.GeneratorExp() as inner, *_]:
                return self.eval(inner)
        given = tuple(self._args(node))
        if name in COPIES:
            return short([joined(path, "~") for where, path in given if where == "0"])
        if name == "zip":
            return short([joined(path, "~") for _, path in given])
        if name == "next":
            self.write(tuple(path for _, path in given[:1]), "next", node.lineno)
        return FRESH

    def _self(self) -> str:
        body: _Body | None = self
        while body is not None:
            for paths in body.env.values():
                if paths in (("s",), ("c",)):
                    return paths[0]
            body = body.outer
        return ""

    def _comprehension(self, node: ast.comprehension) -> None:
        paths = self.eval(node.iter)
        if any("~" in path for path in paths):
            _targets(node.target, self.copied)
        saved = self.is_module, self.class_
        self.is_module, self.class_ = False, None
        self.bind(node.target, tuple(_element(path) for path in paths), "?")
        self.is_module, self.class_ = saved
        for test in node.ifs:
            self.eval(test)

    def comprehension(self, node: Any) -> Paths:
        before = self.env
        self.env = dict(before)
        for generator in node.generators:
            self._comprehension(generator)
        if isinstance(node, ast.DictComp):
            self.eval(node.key)
            self.eval(node.value)
            found: Paths = FRESH
        else:
            found = self.eval(node.elt)
        self.env = before
        return found if isinstance(node, ast.GeneratorExp) else FRESH

    def lambda_(self, node: ast.Lambda) -> Paths:
        inner = self._nested(node)
        return (f"d:{inner.name}",)

    def named_expr(self, node: ast.NamedExpr) -> Paths:
        paths = self.eval(node.value)
        if not self.is_module and node.target.id not in self.globals | self.nonlocals:
            self.own.add(node.target.id)
        self.bind(node.target, paths, self.value_of(node.value))
        return paths

    def parts(self, node: Any) -> Paths:
        """Something new that is made of several: numbers, texts, comparisons."""
        for child in (
            (node.left, node.right)
            if isinstance(node, ast.BinOp)
            else (node.left, *node.comparators)
            if isinstance(node, ast.Compare)
            else node.values
        ):
            self.eval(child)
        return FRESH

    def either(self, node: ast.IfExp) -> Paths:
        self.eval(node.test)
        return short([*self.eval(node.body), *self.eval(node.orelse)])

    def any_of(self, node: ast.BoolOp) -> Paths:
        found = [path for value in node.values for path in self.eval(value)]
        first = node.values[0]
        if isinstance(node.op, ast.Or) and isinstance(first, ast.Name) and self._is_empty_default(first.id):
            found = [path for path in found if path != f"p:{first.id}"]
        return short(found)

    def _is_empty_default(self, name: str) -> bool:
        return self.function.defaults.get(name) == "M"

    def display(self, node: Any) -> Paths:
        """A new container. What is spread into it is copied; what is put into it is passed on."""
        spread: list[str] = []
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    spread += [joined(path, "~") for path in self.eval(value)]
                else:
                    self.eval(key)
                    self.mentioned(value)
        else:
            for part in node.elts:
                if isinstance(part, ast.Starred):
                    spread += [joined(path, "~") for path in self.eval(part.value)]
                else:
                    self.mentioned(part)
        return short(spread)

    def inner(self, node: Any) -> Paths:
        if isinstance(node, ast.Yield | ast.YieldFrom):
            self.function.yields = True
            return (self.mentioned(node.value) and FRESH) if node.value else FRESH
        return self.eval(node.value)

    # -- values

    def value_of(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=None):
                return "N"
            case ast.Constant() | ast.JoinedStr() | ast.UnaryOp():
                return "K"
            case ast.Tuple(elts=parts):
                return "K" if all(self.value_of(part) in "KN" for part in parts) else "T"
            case _ if isinstance(node, DISPLAYS):
                return "M"
            case ast.Call(func=function, keywords=keywords):
                paths = self._quiet(function)
                if not paths:
                    return "M" if _makes(function) else "?"
                mutable = any(each.arg == "default" and self.value_of(each.value) == "M" for each in keywords)
                return f"C:{paths[0]}#M" if mutable else f"C:{paths[0]}"
            case ast.Name() | ast.Attribute() | ast.Subscript():
                paths = self._quiet(node)
                return f"P:{paths[0]}" if paths else "?"
            case ast.IfExp(body=one, orelse=other):
                return max(self.value_of(one), self.value_of(other), key=_rank)
            case ast.BoolOp(values=values):
                return max(map(self.value_of, values), key=_rank)
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self.value_of(inner)
            case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Add() | ast.BitOr()):
                return "M" if "M" in (self.value_of(left), self.value_of(right)) else "?"
        return "?"

    def _quiet(self, node: ast.expr) -> Paths:
        """Without noting anything: it was evaluated already."""
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=base, attr=attr):
                return stepped(self._quiet(base), f".{attr}")
            case ast.Subscript(value=base):
                return tuple(_element(path) for path in self._quiet(base))
            case ast.Call(func=function):
                return stepped(self._quiet(function), "()")
        return FRESH


def _makes(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("list", "dict", "set", "bytearray")


def _defaults(args: ast.arguments, body: _Body) -> dict[str, str]:
    positional = [*args.posonlyargs, *args.args]
    found = dict(
        zip(
            (arg.arg for arg in positional[len(positional) - len(args.defaults) :]),
            args.defaults,
            strict=True,
        )
    )
    found |= {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value}
    values = {name: body.value_of(node) for name, node in found.items()}
    return {name: value for name, value in values.items() if value[0] in "MCP"}


def stepped(paths: Paths, *steps: str) -> Paths:
    if not paths:
        return FRESH
    if len(paths) == 1 == len(steps):
        return (f"{paths[0]}|{steps[0]}",) if paths[0].count(STEP) < MOST_STEPS else FRESH
    return tuple(joined(path, *steps) for path in paths if path.count(STEP) < MOST_STEPS)


def short(paths: Iterable[str]) -> Paths:
    return tuple(dict.fromkeys(paths))[:MOST_PATHS]


def _element(path: str) -> str:
    """What is in a copy is what is in the original."""
    base, _, last = path.rpartition(STEP)
    if last == "~" and base:
        return _element(base)
    return path if last == "[]" else joined(path, "[]")


def _is_about(asked: str, path: str) -> bool:
    """Whether it was asked for that object, or whether something was in it."""
    return path == asked or asked.startswith(path + STEP) or path.startswith(asked + STEP)


def _is_chain(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript)


def _merged(envs: list[dict[str, Paths]]) -> dict[str, Paths]:
    merged = dict(envs[0])
    for env in envs[1:]:
        for name, paths in env.items():
            if merged.get(name) != paths:
                merged[name] = short([*merged.get(name, FRESH), *paths])
    return merged


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
            return True
        case ast.Compare(comparators=[ast.Name(id="__name__")], ops=[ast.Eq()]):
            return True
    return False


_STATEMENTS: Mapping[type[ast.stmt], Callable[[_Body, Any], None]] = MappingProxyType(
    {
        ast.FunctionDef: _Body.define,
        ast.AsyncFunctionDef: _Body.define,
        ast.ClassDef: _Body.define_class,
        ast.Assign: _Body.assign,
        ast.AnnAssign: _Body.ann_assign,
        ast.AugAssign: _Body.aug_assign,
        ast.Delete: _Body.delete,
        ast.If: _Body.if_,
        ast.For: _Body.for_,
        ast.AsyncFor: _Body.for_,
        ast.While: _Body.while_,
        ast.Try: _Body.try_,
        ast.TryStar: _Body.try_,
        ast.With: _Body.with_,
        ast.AsyncWith: _Body.with_,
        ast.Return: _Body.return_,
        ast.Expr: _Body.expression,
        ast.Import: _Body.import_,
        ast.ImportFrom: _Body.import_from,
        ast.Match: _Body.match_,
        ast.Global: lambda body, node: None,
        ast.Nonlocal: lambda body, node: None,
        ast.Pass: lambda body, node: None,
    }
)

_EXPRESSIONS: Mapping[type[ast.expr], Callable[[_Body, Any], Paths]] = MappingProxyType(
    {
        ast.Constant: lambda body, node: FRESH,
        ast.Name: _Body.named,
        ast.Attribute: _Body.named,
        ast.Subscript: _Body.named,
        ast.Call: _Body.call,
        ast.Lambda: _Body.lambda_,
        ast.NamedExpr: _Body.named_expr,
        ast.IfExp: _Body.either,
        ast.BinOp: _Body.parts,
        ast.Compare: _Body.parts,
        ast.JoinedStr: _Body.parts,
        ast.BoolOp: _Body.any_of,
        ast.List: _Body.display,
        ast.Tuple: _Body.display,
        ast.Set: _Body.display,
        ast.Dict: _Body.display,
        ast.ListComp: _Body.comprehension,
        ast.SetComp: _Body.comprehension,
        ast.DictComp: _Body.comprehension,
        ast.GeneratorExp: _Body.comprehension,
        ast.Await: _Body.inner,
        ast.Yield: _Body.inner,
        ast.YieldFrom: _Body.inner,
        ast.Starred: _Body.inner,
    }
)
