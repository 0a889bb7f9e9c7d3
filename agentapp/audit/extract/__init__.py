"""Pass one: extracts from one file what it defines and what its functions do. Nothing is imported or run.

`Scope` goes through the statements of a function and tracks where its variables come from. Each kind of
statement or expression has a handler function; the tables here map node types to handlers. A module of this
package imports only from rows below its own::

    calls  definitions  branches  expressions  locks  imports
    assignments  builtin_calls
    passing  values  dependencies
    chains
    scope
    names  paths
"""

from __future__ import annotations

import ast
from types import MappingProxyType
from typing import Final

from agentapp.audit.extract import (
    assignments,
    branches,
    calls,
    chains,
    definitions,
    expressions,
    imports,
    locks,
    passing,
)
from agentapp.audit.extract.names import collect_names
from agentapp.audit.extract.scope import Expressions, Reading, Scope, Statements
from agentapp.audit.facts import MODULE, Function, Module

# Reads matter only for locks, caches and objects of the current caller. Files without any of these words
# need no reads, which saves time. The words are chosen so that "block" and "clock" do not match.
_READ_FOR = (
    *(b"_lock", b"Lock", b" lock", b".lock", b"emaphore", b"Condition(", b"utex"),
    *(b"lru_cache", b"@cache", b".cache\n", b"@memo"),
    *(b"current_user", b"flask", b"threading.local"),
)


def extract(source: bytes, name: str, path: str, *, is_package: bool = False) -> Module:
    """Extract the facts of one module. Raises `SyntaxError` or `ValueError` if it is not Python."""
    tree = ast.parse(source)
    module = Module(name, path, is_package)
    reading = Reading(
        module,
        collect_names(tree.body).bound,
        _STATEMENTS,
        _EXPRESSIONS,
        with_reads=any(word in source for word in _READ_FOR),
        has_depends=b"Depends" in source,
    )
    module.functions[MODULE] = Function(MODULE, 1)
    Scope(reading, module.functions[MODULE]).run(tree.body)
    return module


# For a node type that is in neither table, the parts are evaluated and the result counts as a new object.
_STATEMENTS: Final[Statements] = MappingProxyType(
    {
        ast.FunctionDef: definitions.define,
        ast.AsyncFunctionDef: definitions.define,
        ast.ClassDef: definitions.define_class,
        ast.Assign: assignments.assign,
        ast.AnnAssign: assignments.ann_assign,
        ast.AugAssign: assignments.aug_assign,
        ast.Delete: assignments.delete,
        ast.If: branches.if_,
        ast.For: branches.for_,
        ast.AsyncFor: branches.for_,
        ast.While: branches.while_,
        ast.Match: branches.match_,
        ast.Try: branches.try_,
        ast.TryStar: branches.try_,
        ast.With: locks.with_,
        ast.AsyncWith: locks.with_,
        ast.Return: passing.return_,
        ast.Import: imports.import_,
        ast.ImportFrom: imports.import_from,
    }
)

_EXPRESSIONS: Final[Expressions] = MappingProxyType(
    {
        ast.Constant: expressions.constant,
        ast.Name: chains.read_paths,
        ast.Attribute: chains.read_paths,
        ast.Subscript: chains.read_paths,
        ast.Call: calls.call,
        ast.Lambda: definitions.lambda_,
        ast.NamedExpr: assignments.named_expr,
        ast.IfExp: expressions.conditional,
        ast.BoolOp: expressions.boolean,
        ast.BinOp: expressions.operation,
        ast.Compare: expressions.comparison,
        ast.JoinedStr: expressions.formatted_string,
        ast.List: expressions.display,
        ast.Tuple: expressions.display,
        ast.Set: expressions.display,
        ast.Dict: expressions.dict_display,
        ast.ListComp: expressions.comprehension,
        ast.SetComp: expressions.comprehension,
        ast.DictComp: expressions.comprehension,
        ast.GeneratorExp: expressions.comprehension,
        ast.Await: expressions.inner_value,
        ast.Starred: expressions.inner_value,
        ast.Yield: passing.yield_,
        ast.YieldFrom: passing.yield_,
    }
)
