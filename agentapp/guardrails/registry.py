"""The registry: one value for each key, changed in one way only, kept in a store that outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)
K_in = TypeVar("K_in", bound=Hashable, contravariant=True)


class Rows(Protocol[K]):
    """One transaction over the rows of a store."""

    def read(self, keys: Sequence[K]) -> Mapping[K, str]:
        """The rows there are. Nobody else may change any of the keys until the transaction ends, not
        even one that has no row yet.
        """

    def write(self, rows: Sequence[tuple[K, str, str]]) -> None:
        """Each is a key, its text, and its mark."""


class Store(Protocol[K]):
    def transaction(self) -> AbstractContextManager[Rows[K]]: ...

    def look(self, keys: Sequence[K]) -> Mapping[K, str]:
        """The rows there are, as they are now, without holding anybody up."""


class Kind(Protocol[K_in, V]):
    """What the values are: how to make a new one, and how to write one down."""

    def fresh(self, key: K_in) -> V:
        """Cheap, and always the same for a key."""

    def dump(self, value: V) -> str: ...
    def load(self, key: K_in, text: str) -> V: ...
    def mark(self, value: V) -> str: ...

    def is_unused(self, value: V) -> bool:
        """Whether a new one would decide just the same, now and later."""


class _Known(NamedTuple, Generic[V]):
    text: str
    value: V
    change: int  # the how-manieth change it was


class Registry(Generic[K, V]):
    """Frozen values by key, shared by every thread and process that uses the same store.

    The row is the truth: every change begins with it and ends in it, inside one transaction. What
    is kept in memory is only the value that belongs to a text, so that the same text need not be
    read twice; dropping it, or all of it, never changes a decision.
    """

    def __init__(
        self, kind: Kind[K, V], store: Store[K], *, cap: int = 1000, cleanup_every: int = 100
    ) -> None:
        self._kind, self._store = kind, store
        self._cap, self._every = cap, cleanup_every
        self._known: dict[K, _Known[V]] = {}  # the longest unchanged first
        self._changes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many values are in memory."""
        return len(self._known)

    def get(self, key: K) -> V:
        """The value as it is now; a new one if there is none yet."""
        return self.look((key,))[0]

    def look(self, keys: Sequence[K]) -> tuple[V, ...]:
        found = self._store.look(keys)
        return tuple(self._value(key, found.get(key)) for key in keys)

    def update(self, key: K, change: Callable[[V], V]) -> V:
        """Change one value, whoever else is at it. If ``change`` raises, nothing is changed."""
        with self._store.transaction() as rows:
            return self.change(rows, (key,), lambda values: (change(values[0]),))[0]

    def change(
        self, rows: Rows[K], keys: Sequence[K], change: Callable[[tuple[V, ...]], Sequence[V]]
    ) -> Sequence[V]:
        """Change several values at once, as part of a transaction that is open already."""
        found = rows.read(keys)
        before = tuple(self._value(key, found.get(key)) for key in keys)
        after = change(before)
        changed = [
            (key, self._kind.dump(new), new)
            for key, old, new in zip(keys, before, after, strict=True)
            if new is not old
        ]
        rows.write([(key, text, self._kind.mark(new)) for key, text, new in changed])
        for key, text, new in changed:
            self._remember(key, text, new)
        self._count()
        return after

    def clean_up(self) -> None:
        """Drop from memory what has nothing to tell and was not changed for a while."""
        with self._lock:
            idle = [
                key
                for key, known in self._known.items()
                if known.change < self._changes - self._every and self._kind.is_unused(known.value)
            ]
            for key in idle:
                del self._known[key]

    def _value(self, key: K, text: str | None) -> V:
        if text is None:
            return self._kind.fresh(key)
        known = self._known.get(key)  # agentapp: shared ok - atomic, and what is missed is loaded anew
        if known is not None and known.text == text:
            return known.value
        value = self._kind.load(key, text)
        self._remember(key, text, value)
        return value

    def _remember(self, key: K, text: str, value: V) -> None:
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = _Known(text, value, self._changes)
            if len(self._known) > self._cap:
                self._make_room()

    def _make_room(self) -> None:
        """A tenth at a time: the unused first, then the longest unchanged."""
        by_use = sorted(self._known, key=lambda key: not self._kind.is_unused(self._known[key].value))
        for key in by_use[: self._cap // 10 + 1]:
            del self._known[key]

    def _count(self) -> None:
        with self._lock:
            self._changes += 1
            due = self._changes % self._every == 0
        if due:
            self.clean_up()
