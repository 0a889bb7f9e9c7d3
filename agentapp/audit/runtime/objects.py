"""Asking any object what it is without running a line of its code.

Nothing here, nor in the modules that use it, asks an object for an attribute, a length, an iterator, its
class, its hash or whether it equals another: each of those may be somebody's method, and may raise, load a
module, open a connection or look up the request of somebody else. Instead the slots of the interpreter's own
types are read.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import islice
from types import EllipsisType, FunctionType, ModuleType, NoneType, NotImplementedType
from typing import Any

MISSING = object()  # where a name was not bound

# Types are known by their ids: a metaclass may have an opinion on how its classes are hashed or compared.
ATOMS = frozenset(
    map(
        id,
        (NoneType, bool, int, float, complex, str, bytes, range, EllipsisType, NotImplementedType),
    )
)

_class_dict: Any = type.__dict__["__dict__"]
_class_mro: Any = type.__dict__["__mro__"]
_class_qualname: Any = type.__dict__["__qualname__"]
_module_dict: Any = vars(ModuleType)["__dict__"]
_exception_args: Any = BaseException.__dict__["args"]


def class_dict(cls: type) -> Any:
    """The namespace of a class, whatever its metaclass says."""
    return _class_dict.__get__(cls)


def mro(cls: type) -> tuple[type, ...]:
    found: tuple[type, ...] = _class_mro.__get__(cls)
    return found


def module_dict(module: ModuleType) -> dict[str, Any]:
    """The namespace of a module. A lazy one is not loaded by this."""
    return _module_dict.__get__(module) or {}


def exception_args(exc: BaseException) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _exception_args.__get__(exc)
    return found


def class_module(cls: type) -> str:
    found = class_dict(cls).get("__module__")
    return found if type(found) is str else ""


def class_name(cls: type) -> str:
    """Without the module."""
    return str.__str__(_class_qualname.__get__(cls))


def function_module(function: FunctionType) -> str:
    """Where its code was written: ``__module__`` may have been copied from what it wraps."""
    found = dict.get(function.__globals__, "__name__")
    return found if type(found) is str else ""


def is_proxy(cls: type) -> bool:
    """Whether its instances pretend to be of another class, as a `LocalProxy` or a mock does."""
    return any("__class__" in class_dict(base) for base in mro(cls) if base is not object)


def inherits(cls: type, bases: tuple[type, ...]) -> bool:
    """Really, and not because a ``__subclasscheck__`` says so."""
    return any(each is base for each in mro(cls) for base in bases)


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def referents(obj: Any, limit: int) -> list[Any]:
    """What an object of the interpreter's own types refers to, except for classes."""
    return [each for each in islice(gc.get_referents(obj), limit) if not issubclass(type(each), type)]


def length(value: Any) -> int | None:
    """Of one of the interpreter's containers."""
    cls = type(value)
    for base in (list, dict, set, frozenset, deque, bytearray):
        if issubclass(cls, base):
            return int(base.__len__(value))
    return len(value) if cls is tuple else None
