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
        ast.FunctionDef: definitions.define_function,
        ast.AsyncFunctionDef: definitions.define_function,
        ast.ClassDef: definitions.define_class,
        ast.Assign: assignments.run_assign,
        ast.AnnAssign: assignments.run_ann_assign,
        ast.AugAssign: assignments.run_aug_assign,
        ast.Delete: assignments.run_delete,
        ast.If: branches.run_if,
        ast.For: branches.run_for,
        ast.AsyncFor: branches.run_for,
        ast.While: branches.run_while,
        ast.Match: branches.run_match,
        ast.Try: branches.run_try,
        ast.TryStar: branches.run_try,
        ast.With: locks.run_with,
        ast.AsyncWith: locks.run_with,
        ast.Return: passing.run_return,
        ast.Import: imports.run_import,
        ast.ImportFrom: imports.run_import_from,
    }
)

_EXPRESSIONS: Final[Expressions] = MappingProxyType(
    {
        ast.Constant: expressions.eval_constant,
        ast.Name: chains.read_paths,
        ast.Attribute: chains.read_paths,
        ast.Subscript: chains.read_paths,
        ast.Call: calls.eval_call,
        ast.Lambda: definitions.define_lambda,
        ast.NamedExpr: assignments.eval_named_expr,
        ast.IfExp: expressions.eval_conditional,
        ast.BoolOp: expressions.eval_boolean,
        ast.BinOp: expressions.eval_operation,
        ast.Compare: expressions.eval_comparison,
        ast.JoinedStr: expressions.eval_formatted_string,
        ast.List: expressions.eval_display,
        ast.Tuple: expressions.eval_display,
        ast.Set: expressions.eval_display,
        ast.Dict: expressions.eval_dict_display,
        ast.ListComp: expressions.eval_comprehension,
        ast.SetComp: expressions.eval_comprehension,
        ast.DictComp: expressions.eval_comprehension,
        ast.GeneratorExp: expressions.eval_comprehension,
        ast.Await: expressions.eval_inner,
        ast.Starred: expressions.eval_inner,
        ast.Yield: passing.eval_yield,
        ast.YieldFrom: passing.eval_yield,
    }
)
