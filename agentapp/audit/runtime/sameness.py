"""Comparisons without calling methods: by identity, or by equality of plain values such as texts."""

from __future__ import annotations

from operator import is_
from types import BuiltinFunctionType, MethodType
from typing import Any

from agentapp.audit.runtime.objects import ATOMS, length
from agentapp.audit.runtime.states import State


def is_unchanged(before: State, now: State) -> bool:
    """A quick comparison by identity. ``False`` may still mean equal values."""
    return before[0] == now[0] and len(before[1]) == len(now[1]) and all(map(is_, before[1], now[1]))


def is_alike(one: Any, other: Any, depth: int = 3) -> bool:
    """Whether both are the same object, or equal plain values."""
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
            and all(is_alike(a, b, depth - 1) for a, b in zip(one, other, strict=True))
        )
    if kind is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if kind is BuiltinFunctionType:
        return one.__self__ is other.__self__ and bool(one.__name__ == other.__name__)
    return False


def are_same_items(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return len(before) == len(now) and all(map(is_alike, before, now))


def are_same_members(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Compare as sets, whose order changes when they are rebuilt."""
    if len(before) != len(now):
        return False
    ids = set(map(id, before))
    fresh = [each for each in now if id(each) not in ids]
    if not fresh:
        return True
    known = {each for each in before if id(type(each)) in ATOMS}
    return all(id(type(each)) in ATOMS and each in known for each in fresh)


def is_empty_inside(value: Any, depth: int = 3) -> bool:
    """Whether it is an empty container, or a dict of only such containers."""
    if issubclass(type(value), dict):
        return depth > 0 and all(is_empty_inside(each, depth - 1) for each in dict.values(value))
    return length(value) == 0


def is_filled_by_reading(before: State, now: State) -> bool:
    """Whether a mapping only got empty values, as a defaultdict does when missing keys are read."""
    half, old = len(now[1]) // 2, len(before[1]) // 2
    return (
        half == now[0]
        and half > old
        and are_same_items(before[1], now[1][:old] + now[1][half : half + old])
        and all(is_empty_inside(each) for each in now[1][half + old :])
    )
