"""Chooses the inspector for each type, and the types that are not inspected."""

from __future__ import annotations

import contextvars
import functools
import threading
import types
import weakref
from collections import UserList
from collections.abc import MutableMapping, MutableSequence, MutableSet

from agentapp.audit.runtime import definitions, holders, shapes
from agentapp.audit.runtime.objects import class_module, class_name, inherits, is_proxy, mro
from agentapp.audit.runtime.states import instance_reader
from agentapp.audit.runtime.walk import Inspector, Walk

HERE = __name__.rpartition(".")[0] + "."

# Their content belongs to one thread, task or request, or they do not keep it alive.
_NOT_SHARED = (
    threading.local,
    weakref.ref,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
    contextvars.Context,
    contextvars.Token,
)
_LOCALS = frozenset(
    {
        ("_threading_local", "local"),
        ("asgiref.local", "Local"),
        ("eventlet.corolocal", "local"),
        ("gevent._gevent_clocal", "local"),
        ("gevent.local", "local"),
        ("werkzeug.local", "Local"),
        ("werkzeug.local", "LocalProxy"),
        ("werkzeug.local", "LocalStack"),
    }
)
# A request cannot store data in these, or they are internal to the interpreter.
_OPAQUE = (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.BuiltinFunctionType)
_WRAPPERS = (
    frozenset,
    types.MethodType,
    classmethod,
    staticmethod,
    property,
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    types.MappingProxyType,
)
_ABCS = (MutableMapping, MutableSequence, MutableSet, UserList)


def inspector_for(walk: Walk, cls: type) -> Inspector | None:
    """The inspector for instances of a type; ``None`` if they need no inspection."""
    if _is_left_alone(cls):
        return None
    if issubclass(cls, type):
        return definitions.inspect_class
    if issubclass(cls, types.FunctionType):
        return definitions.inspect_function
    if issubclass(cls, functools._lru_cache_wrapper):
        return definitions.inspect_cache
    if issubclass(cls, contextvars.ContextVar):
        return definitions.inspect_context_variable
    if issubclass(cls, tuple):
        return holders.inspect_tuple
    if issubclass(cls, _WRAPPERS):
        return holders.inspect_wrapped
    return _inspector_for_instances(walk, cls)


def _inspector_for_instances(walk: Walk, cls: type) -> Inspector | None:
    reader = instance_reader(cls)
    attributes: Inspector | None = None
    if reader is not None and (walk.bounds.owns(class_module(cls)) or cls is types.SimpleNamespace):
        attributes = functools.partial(holders.inspect_instance, shapes.of_instances(reader))
    for base, shape in shapes.CONTAINERS:
        if issubclass(cls, base):
            return functools.partial(holders.inspect_container, shape, attributes)
    if attributes is not None:
        return attributes
    if reader is not None and inherits(cls, _ABCS):
        return functools.partial(holders.inspect_foreign, shapes.of_foreign_containers(reader), True)
    if reader is not None and not issubclass(cls, (str, bytes, int, float)):
        return functools.partial(holders.inspect_foreign, shapes.of_foreign(reader), False)
    return holders.inspect_referents if walk.marks else None


def _is_left_alone(cls: type) -> bool:
    if issubclass(cls, _OPAQUE) or inherits(cls, _NOT_SHARED) or is_proxy(cls):
        return True
    if class_module(cls).startswith(HERE):
        return True
    return any((class_module(base), class_name(base)) in _LOCALS for base in mro(cls))
