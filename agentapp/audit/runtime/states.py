"""Readers: each reads what one kind of object holds, as a state that can be compared later."""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from agentapp.audit.runtime.objects import cell_contents, class_dict, is_dunder, module_dict, mro

# The number of items, and the items. For a mapping or a namespace: all keys, then all values.
State = tuple[int, tuple[Any, ...]]
Reader = Callable[[Any, int], State]

EMPTY: State = (0, ())

_lru_info: Any = vars(functools._lru_cache_wrapper)["cache_info"]


def halves(items: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split the items of a mapping or a namespace into keys and values."""
    half = len(items) // 2
    return items[:half], items[half:]


def as_dict(state: State) -> dict[str, Any]:
    """The state of a namespace as a dict."""
    pairs = zip(*halves(state[1]), strict=True)
    return {name: value for name, value in pairs if type(name) is str}


def _ends(forth: Iterable[Any], back: Iterable[Any], limit: int) -> tuple[Any, ...]:
    """The beginning and the end of a sequence that is too long to keep. Most changes happen there."""
    return (*islice(forth, limit // 2), *islice(back, limit // 2))


def _sequence_reader(cls: type[list[Any]] | type[deque[Any]]) -> Reader:
    length, forth, back = cls.__len__, cls.__iter__, cls.__reversed__

    def read(obj: Any, limit: int) -> State:
        size = length(obj)
        if size > limit:
            return size, _ends(forth(obj), back(obj), limit)
        items = tuple(forth(obj))
        return len(items), items

    return read


read_list = _sequence_reader(list)
read_deque = _sequence_reader(deque)


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
    """A function with ``functools.lru_cache``: the size of its cache, and the number of misses."""
    info = _lru_info(obj)
    return info.currsize, (info.misses,)


def read_function(obj: FunctionType, limit: int) -> State:
    """Attributes of a function, and variables of enclosing functions, which start with a colon."""
    cells = obj.__closure__
    attributes = obj.__dict__
    if cells is None:
        return read_dict(attributes, limit) if attributes else EMPTY
    names = (*attributes, *[":" + name for name in obj.__code__.co_freevars])
    values = (*attributes.values(), *[cell_contents(cell) for cell in cells])
    return len(names), names + values


def instance_reader(cls: type) -> Reader | None:
    """A reader for the attributes of instances, in ``__dict__`` and ``__slots__``.

    ``None`` if they cannot be read without calling methods of the class.
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
