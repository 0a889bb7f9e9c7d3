"""Parameters that a framework fills by calling a function: ``Depends(f)``, as default or annotation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agentapp.audit.extract.chains import peek_paths
from agentapp.audit.extract.paths import FRESH, Paths, add_steps
from agentapp.audit.extract.scope import Scope
from agentapp.audit.facts import INJECTED


def find_dependencies(scope: Scope, args: ast.arguments) -> Iterator[tuple[str, Paths]]:
    """The parameters with a dependency, each with the paths of the object that it gets."""
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    for arg, default in [
        *zip(positional, defaults, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]:
        for node in (default, arg.annotation):
            found = find_dependency(scope, node)
            if found:
                yield arg.arg, found


def find_dependency(scope: Scope, node: ast.expr | None) -> Paths:
    """Also inside ``Annotated[...]``, and through a module-level name for such an annotation."""
    match node:
        case ast.Call(func=ast.Name(id="Depends") | ast.Attribute(attr="Depends"), args=[inner, *_]):
            return add_steps(peek_paths(scope, inner), "()", INJECTED)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=parts)):
            return next((found for part in parts if (found := find_dependency(scope, part))), FRESH)
        case ast.Name(id=name):
            return scope.reading.dependencies.get(name, FRESH)
    return FRESH
