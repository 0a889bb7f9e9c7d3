"""Inspectors for classes, functions, cached functions and context variables."""

from __future__ import annotations

import contextvars
import enum
from types import FunctionType
from typing import Any

from agentapp.audit.runtime import objects
from agentapp.audit.runtime.nodes import Node
from agentapp.audit.runtime.shapes import CACHE, CLASS, CLASS_INTERNALS, FUNCTION
from agentapp.audit.runtime.states import read_dict
from agentapp.audit.runtime.walk import Walk


def inspect_class(walk: Walk, node: Node) -> None:
    cls: type = node.obj
    module = objects.class_module(cls)
    if not walk.bounds.owns(module):
        return
    node.rename(f"{module}.{objects.class_name(cls)}")
    if not walk.note(node, CLASS):
        return
    internals = CLASS_INTERNALS if issubclass(type(cls), enum.EnumMeta) else frozenset()
    functions = (FunctionType, classmethod, staticmethod)

    def wanted(name: str, value: Any) -> bool:
        return issubclass(type(value), functions) if objects.is_dunder(name) else name not in internals

    walk.expand_names(node, wanted)
    walk.expand(node, objects.mro(cls)[1:], lambda _: "")


def inspect_function(walk: Walk, node: Node) -> None:
    function: FunctionType = node.obj
    module = objects.function_module(function)
    if not walk.bounds.owns(module):
        _inspect_wrapper(walk, node)
        return
    node.rename(f"{module}.{str.__str__(function.__qualname__)}")
    if not walk.note(node, FUNCTION):
        return
    walk.expand_names(node)
    defaults, code = function.__defaults__ or (), function.__code__
    takes = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    names = takes if len(takes) == len(defaults) else tuple("?" for _ in defaults)
    walk.expand(node, defaults, lambda at: f"({names[at]}=...)")
    if function.__kwdefaults__:
        keywords = tuple(function.__kwdefaults__)
        values = tuple(function.__kwdefaults__.values())
        walk.expand(node, values, lambda at: f"({keywords[at]}=...)")


def _inspect_wrapper(walk: Walk, node: Node) -> None:
    """A wrapper made by a library: its variables may hold functions of the watched packages."""
    if node.hops <= walk.most_hops:
        inside = [objects.cell_contents(cell) for cell in node.obj.__closure__ or ()]
        names = node.obj.__code__.co_freevars
        walk.expand(node, inside, lambda at: f":{names[at]}", node.hops + 1)


def inspect_cache(walk: Walk, node: Node) -> None:
    if _is_of_a_library(walk, node.obj):
        return
    walk.note(node, CACHE)
    for each in objects.referents(node.obj, walk.bounds.limit * 3):
        if type(each) is not dict:
            walk.expand(node, (each,), lambda _: "()")
        elif each is not node.obj.__dict__:
            walk.expand(node, read_dict(each, walk.bounds.limit)[1], lambda _: "()")


def _is_of_a_library(walk: Walk, cache: Any) -> bool:
    """Whether the cached function itself belongs to a library, as ``urllib.parse.urlsplit`` does."""
    wrapped: Any = dict.get(cache.__dict__, "__wrapped__")
    if not issubclass(type(wrapped), FunctionType) or walk.bounds.owns(objects.function_module(wrapped)):
        return False
    return "." in wrapped.__qualname__ or wrapped.__globals__.get(wrapped.__name__) is cache


def inspect_context_variable(walk: Walk, node: Node) -> None:
    """The value of a context variable belongs to one context, but its default is shared."""
    try:
        default = contextvars.Context().run(node.obj.get)
    except LookupError:
        return
    walk.expand(node, (default,), lambda _: "(default)")
