"""Reading any object without running a line of its code.

Nothing here asks an object for an attribute, a length, an iterator, its class, its hash or whether it equals
another: each of those may be somebody's method, and may raise, load a module, open a connection or look up
the request of somebody else. Instead the slots of the interpreter's own types are read, and two objects are
the same if they are one object, or plain values such as texts and numbers.
"""

from __future__ import annotations

import functools
import gc
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from operator import is_
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    NotImplementedType,
)
from typing import Any

# What an object holds: how many, and which. For a mapping or a namespace the second half are the values.
State = tuple[int, tuple[Any, ...]]
Reader = Callable[[Any, int], State]

EMPTY: State = (0, ())
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
_lru_info: Any = vars(functools._lru_cache_wrapper)["cache_info"]


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


# --- What is held: one reader for each sort of object -------------------------------------------------


def _ends(forth: Iterable[Any], back: Iterable[Any], limit: int) -> tuple[Any, ...]:
    """Of what is too long to be kept whole: its beginning and its end, where most things are added."""
    return (*islice(forth, limit // 2), *islice(back, limit // 2))


def read_list(obj: list[Any], limit: int) -> State:
    length = list.__len__(obj)
    if length > limit:
        return length, _ends(list.__iter__(obj), list.__reversed__(obj), limit)
    items = tuple(list.__iter__(obj))
    return len(items), items


def read_deque(obj: deque[Any], limit: int) -> State:
    length = deque.__len__(obj)
    if length > limit:
        return length, _ends(deque.__iter__(obj), deque.__reversed__(obj), limit)
    items = tuple(deque.__iter__(obj))
    return len(items), items


def read_set(obj: set[Any], limit: int) -> State:
    items = tuple(islice(set.__iter__(obj), limit))
    return set.__len__(obj), items


def read_bytes(obj: bytearray, limit: int) -> State:
    whole = bytearray.__len__(obj) <= limit * 64
    half = slice(None) if whole else slice(limit * 32)
    rest = slice(0) if whole else slice(-limit * 32, None)
    return bytearray.__len__(obj), (
        bytes(bytearray.__getitem__(obj, half)),
        bytes(bytearray.__getitem__(obj, rest)),
    )


def read_array(obj: array[Any], limit: int) -> State:
    length = array.__len__(obj)
    part = slice(None) if length <= limit * 64 else slice(-limit * 64, None)
    return length, (array.tobytes(array.__getitem__(obj, part)),)


def read_dict(obj: dict[Any, Any], limit: int) -> State:
    length = dict.__len__(obj)
    keys, values = dict.keys(obj), dict.values(obj)
    if length > limit:
        return length, _ends(keys, reversed(keys), limit) + _ends(values, reversed(values), limit)
    items = (*keys, *values)
    return len(items) // 2, items


def read_class(obj: type, limit: int) -> State:
    names = class_dict(obj)
    items = (*names, *names.values())
    return len(items) // 2, items


def read_module(obj: ModuleType, limit: int) -> State:
    return read_dict(module_dict(obj), max(limit, len(module_dict(obj))))


def read_cache(obj: Any, limit: int) -> State:
    """A function under ``functools.lru_cache``: what it holds, and how often it had to take something in."""
    info = _lru_info(obj)
    return info.currsize, (info.misses,)


def read_function(obj: FunctionType, limit: int) -> State:
    """Attributes of a function, and the variables of the functions around it, with a colon in front."""
    cells = obj.__closure__
    attributes = obj.__dict__
    if cells is None:
        return read_dict(attributes, limit) if attributes else EMPTY
    names = (*attributes, *[":" + name for name in obj.__code__.co_freevars])
    values = (*attributes.values(), *[cell_contents(cell) for cell in cells])
    return len(names), names + values


def cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def instance_reader(cls: type) -> Reader | None:
    """How to read the attributes of an instance, in ``__dict__`` and in ``__slots__``; ``None`` if it has
    none that can be read without its help.
    """
    home: Any = None
    slots: list[tuple[str, Any]] = []
    for base in mro(cls):
        names = class_dict(base)
        for name, found in names.items():
            if name == "__dict__":
                if home is None and (
                    type(found) is GetSetDescriptorType or type(found) is MemberDescriptorType
                ):
                    home = found
            elif type(found) is MemberDescriptorType and "__slots__" in names and not is_dunder(name):
                slots.append((name, found))

    def read_slots(obj: Any, limit: int) -> State:
        names, values = [], []
        for name, slot in slots:
            try:
                value = slot.__get__(obj)
            except AttributeError:
                continue
            names.append(name)
            values.append(value)
        if home is not None:
            attributes = home.__get__(obj) or {}
            names.extend(dict.keys(attributes))
            values.extend(dict.values(attributes))
        return len(names), (*names, *values)

    def read_attributes(obj: Any, limit: int) -> State:
        return read_dict(home.__get__(obj) or {}, limit)

    if slots:
        return read_slots
    return None if home is None else read_attributes


def referents(obj: Any, limit: int) -> list[Any]:
    """What an object of the interpreter's own types refers to, except for classes."""
    return [each for each in islice(gc.get_referents(obj), limit) if not issubclass(type(each), type)]


# --- Whether it is still the same ----------------------------------------------------------------------


def unchanged(before: State, now: State) -> bool:
    """Quickly, and only by identity: ``False`` may still turn out to be no change."""
    return before[0] == now[0] and len(before[1]) == len(now[1]) and all(map(is_, before[1], now[1]))


def alike(one: Any, other: Any, depth: int = 3) -> bool:
    """One object, or plain values that are equal."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if id(kind) in ATOMS:
        return bool(one == other)
    if kind is tuple:
        return (
            depth > 0
            and len(one) == len(other)
            and all(alike(a, b, depth - 1) for a, b in zip(one, other, strict=True))
        )
    if kind is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if kind is BuiltinFunctionType:
        return one.__self__ is other.__self__ and bool(one.__name__ == other.__name__)
    return False


def same_items(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(map(alike, before, now))


def same_members(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """As sets: their order means nothing, and changes when they are rebuilt."""
    if len(before) != len(now):
        return False
    ids = set(map(id, before))
    fresh = [each for each in now if id(each) not in ids]
    if not fresh:
        return True
    known = {each for each in before if id(type(each)) in ATOMS}
    return all(id(type(each)) in ATOMS and each in known for each in fresh)


def is_hollow(value: Any, depth: int = 3) -> bool:
    """Whether there is nothing in it, but for other hollow things."""
    if issubclass(type(value), dict):
        return depth > 0 and all(is_hollow(each, depth - 1) for each in dict.values(value))
    return _length(value) == 0


def filled_by_reading(before: State, now: State) -> bool:
    """Whether all that is new in a mapping is hollow, as it is when a defaultdict was only asked."""
    half, old = len(now[1]) // 2, len(before[1]) // 2
    return (
        half == now[0]
        and half > old
        and same_items(before[1], now[1][:old] + now[1][half : half + old])
        and all(is_hollow(each) for each in now[1][half + old :])
    )


# --- What may be said about it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts about values. They say of what type and how many; what they are, only if that was asked for."""

    values: bool = False

    def of(self, value: Any) -> str:
        if value is MISSING:
            return "nothing"
        return self._shown(value, 2) if self.values else self._sort(value)

    def state(self, obj: Any, state: State, halves: bool) -> str:
        """Of a container, as it was or is."""
        text = f"{self._type(obj)} of {state[0]}"
        if not self.values:
            return text
        items = state[1]
        if halves:
            keys, values = items[: len(items) // 2], items[len(items) // 2 :]
            pairs = list(zip(keys, values, strict=True))
            shown = [f"{self._shown(k, 1)}: {self._shown(v, 1)}" for k, v in pairs[-3:]]
        else:
            shown = [self._shown(each, 1) for each in items[-3:]]
        dots = "…, " if state[0] > len(shown) else ""
        return f"{text} ({dots}{', '.join(shown)})" if shown else text

    def key(self, key: Any) -> str:
        return f"[{self._shown(key, 1)}]" if self.values else "[...]"

    def _type(self, value: Any) -> str:
        return class_name(type(value))

    def _sort(self, value: Any) -> str:
        length = _length(value)
        return self._type(value) if length is None else f"{self._type(value)} of {length}"

    def _shown(self, value: Any, depth: int) -> str:
        if id(type(value)) in ATOMS:
            text = repr(value[:80]) if type(value) in (str, bytes) else repr(value)
            return text if len(text) <= 90 else text[:89] + "…"
        if depth > 0 and (type(value) is list or type(value) is tuple):
            inside = ", ".join(self._shown(each, depth - 1) for each in value[:3])
            return f"{self._type(value)}({inside}{', …' if len(value) > 3 else ''})"
        return self._sort(value)


def _length(value: Any) -> int | None:
    cls = type(value)
    for base in (list, dict, set, frozenset, deque, bytearray):
        if issubclass(cls, base):
            return int(base.__len__(value))
    return len(value) if cls is tuple else None
