"""The kinds of objects: how each is read, and which of its changes are ignored."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal

from agentapp.audit.runtime import states
from agentapp.audit.runtime.objects import ATOMS, MISSING, class_dict, is_dunder, mro

MAPPINGS = ("mapping", "asked")
CLASS_INTERNALS = frozenset({"_abc_impl", "_value2member_map_", "_member_map_", "_unhashable_values_"})


def _nothing_ignored(obj: Any, name: str, before: Any, after: Any) -> bool:
    return False


def _ignored_in_module(obj: Any, name: str, before: Any, after: Any) -> bool:
    """Ignore imported modules, classes and functions, and the entries of the import system."""
    if is_dunder(name) or issubclass(type(after), ModuleType):
        return True
    return before is MISSING and issubclass(type(after), (type, FunctionType, BuiltinFunctionType))


def _ignored_in_class(obj: Any, name: str, before: Any, after: Any) -> bool:
    return is_dunder(name) or name in CLASS_INTERNALS


def _ignored_in_function(obj: Any, name: str, before: Any, after: Any) -> bool:
    return is_dunder(name.removeprefix(":"))


def _ignored_in_foreign(obj: Any, name: str, before: Any, after: Any) -> bool:
    """Ignore private attributes of a library's object, and cached properties."""
    if name.startswith("_"):
        return True
    return before is MISSING and any(name in class_dict(base) for base in mro(type(obj)))


def _ignored_in_foreign_container(obj: Any, name: str, before: Any, after: Any) -> bool:
    return all(each is MISSING or id(type(each)) in ATOMS for each in (before, after))


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of object.

    ``ignores`` is called for each changed name of a namespace, with the object, the name and its values
    before and after.
    """

    read: states.Reader
    sort: Literal["sequence", "mapping", "asked", "set", "cache", "names"]
    ignores: Callable[[Any, str, Any, Any], bool] = _nothing_ignored


CONTAINERS: tuple[tuple[type, Shape], ...] = (
    (list, Shape(states.read_list, "sequence")),
    (dict, Shape(states.read_dict, "mapping")),
    (set, Shape(states.read_set, "set")),
    (deque, Shape(states.read_deque, "sequence")),
    (bytearray, Shape(states.read_bytes, "sequence")),
    (array, Shape(states.read_array, "sequence")),
)
# A defaultdict of a library grows when a missing key is read, which is not reported.
LIBRARY_DEFAULTDICT = Shape(states.read_dict, "asked")
CACHE = Shape(states.read_cache, "cache")
MODULE = Shape(states.read_module, "names", _ignored_in_module)
CLASS = Shape(states.read_class, "names", _ignored_in_class)
FUNCTION = Shape(states.read_function, "names", _ignored_in_function)


def of_instances(reader: states.Reader) -> Shape:
    return Shape(reader, "names")


def of_foreign(reader: states.Reader) -> Shape:
    return Shape(reader, "names", _ignored_in_foreign)


def of_foreign_containers(reader: states.Reader) -> Shape:
    return Shape(reader, "names", _ignored_in_foreign_container)
