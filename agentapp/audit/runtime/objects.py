"""Reads any object without running its code.

Attribute access, length, iteration, ``__class__``, hash and equality may all be overridden: such a method may
raise, load a module, open a connection or read another request. So this module, and those that use it, read
only the slots of the interpreter's own types.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import islice
from types import EllipsisType, FunctionType, ModuleType, NoneType, NotImplementedType
from typing import Any

MISSING = object()  # stands for the value of a name that is not bound

# Types are compared by id, because a metaclass may override hash and equality of its classes.
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
    """The namespace of a class, read without its metaclass."""
    return _class_dict.__get__(cls)


def mro(cls: type) -> tuple[type, ...]:
    found: tuple[type, ...] = _class_mro.__get__(cls)
    return found


def module_dict(module: ModuleType) -> dict[str, Any]:
    """The namespace of a module. This does not load a lazy module."""
    return _module_dict.__get__(module) or {}


def exception_args(exc: BaseException) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _exception_args.__get__(exc)
    return found


def class_module(cls: type) -> str:
    found = class_dict(cls).get("__module__")
    return found if type(found) is str else ""


def class_name(cls: type) -> str:
    """The qualified name, without the module."""
    return str.__str__(_class_qualname.__get__(cls))


def function_module(function: FunctionType) -> str:
    """The module that defines the code. ``__module__`` may be copied from a wrapped function."""
    found = dict.get(function.__globals__, "__name__")
    return found if type(found) is str else ""


def is_proxy(cls: type) -> bool:
    """Whether its instances override ``__class__``, as a `LocalProxy` or a mock does."""
    return any("__class__" in class_dict(base) for base in mro(cls) if base is not object)


def inherits(cls: type, bases: tuple[type, ...]) -> bool:
    """Like ``issubclass``, but ignores ``__subclasscheck__``."""
    return any(each is base for each in mro(cls) for base in bases)


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def referents(obj: Any, limit: int) -> list[Any]:
    """The objects that an object of a builtin type refers to, except for classes."""
    return [each for each in islice(gc.get_referents(obj), limit) if not issubclass(type(each), type)]


def length(value: Any) -> int | None:
    """The length of a builtin container; ``None`` for other objects."""
    cls = type(value)
    for base in (list, dict, set, frozenset, deque, bytearray):
        if issubclass(cls, base):
            return int(base.__len__(value))
    return len(value) if cls is tuple else None
