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

    def read(self, keys: Sequence[K], unlocked: Sequence[K] = ()) -> Mapping[K, str]:
        """The rows that exist. No other transaction may change any of the keys until this one ends, not
        even a key that has no row yet. The ``unlocked`` ones may be changed by others meanwhile: a store is
        asked for such only by a `change` that is given keys to be seen.
        """

    def write(self, rows: Sequence[tuple[K, str, str]]) -> None:
        """Each row is a key, its text, and its mark."""


class Store(Protocol[K]):
    def transaction(self) -> AbstractContextManager[Rows[K]]: ...

    def look(self, keys: Sequence[K]) -> Mapping[K, str]:
        """The rows that exist, as they are now, without a lock."""


class Kind(Protocol[K_in, V]):
    """How to make a new value, how to write one as text, and how to read it again."""

    def fresh(self, key: K_in) -> V:
        """A new value. It is cheap to make, and always the same for a key."""

    def dump(self, value: V) -> str: ...
    def load(self, key: K_in, text: str) -> V: ...
    def mark(self, value: V) -> str: ...

    def is_unused(self, value: V) -> bool:
        """Whether a new one would decide just the same, now and later."""


class _Cached(NamedTuple, Generic[V]):
    text: str
    value: V
    change: int  # the registry's count of changes when this entry was made


class Registry(Generic[K, V]):
    """Frozen values by key, shared by every thread and process that uses the same store.

    The row is the truth: every change reads it and writes it, inside one transaction. Memory holds only
    a cache of the values that texts decode to, so that the same text need not be decoded twice. Dropping
    an entry, or all of them, never changes a decision.
    """

    def __init__(
        self, kind: Kind[K, V], store: Store[K], *, cap: int = 1000, cleanup_every: int = 100
    ) -> None:
        self._kind, self._store = kind, store
        self._cap, self._every = cap, cleanup_every
        self._cache: dict[K, _Cached[V]] = {}  # the longest unchanged first
        self._changes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many values are in memory."""
        return len(self._cache)

    def get(self, key: K) -> V:
        """The value as it is now; a new one if there is none yet."""
        return self.look((key,))[0]

    def look(self, keys: Sequence[K]) -> tuple[V, ...]:
        found = self._store.look(keys)
        return tuple(self._value(key, found.get(key)) for key in keys)

    def decoded(self, key: K, text: str | None) -> V:
        """What such a row would be; without a text a new one."""
        return self._value(key, text)

    def update(self, key: K, change: Callable[[V], V]) -> V:
        """Change one value while nobody else can. If ``change`` raises, nothing is changed."""
        with self._store.transaction() as rows:
            return self.change(rows, (key,), lambda values: (change(values[0]),))[0]

    def change(
        self,
        rows: Rows[K],
        keys: Sequence[K],
        change: Callable[[tuple[V, ...]], Sequence[V]],
        seen: Sequence[K] = (),
    ) -> Sequence[V]:
        """Change several values at once, as part of an open transaction. ``change`` also gets the values that
        are only ``seen``, after the others: they are not locked, and what becomes of them is not stored.
        """
        found = rows.read(keys, seen) if seen else rows.read(keys)
        before = tuple(self._value(key, found.get(key)) for key in (*keys, *seen))
        after = change(before)
        changed = [
            (key, self._kind.dump(new), new)
            for key, old, new in zip(keys, before, after, strict=False)
            if new is not old
        ]
        rows.write([(key, text, self._kind.mark(new)) for key, text, new in changed])
        for key, text, new in changed:
            self._remember(key, text, new)
        self._count()
        return after

    def clean_up(self) -> None:
        """Drop from memory the unused values that were not changed for a while."""
        with self._lock:
            idle = [
                key
                for key, cached in self._cache.items()
                if cached.change < self._changes - self._every and self._kind.is_unused(cached.value)
            ]
            for key in idle:
                del self._cache[key]

    def _value(self, key: K, text: str | None) -> V:
        if text is None:
            return self._kind.fresh(key)
        cached = self._cache.get(key)  # agentapp: shared ok - atomic, and what is missed is loaded anew
        if cached is not None and cached.text == text:
            return cached.value
        value = self._kind.load(key, text)
        self._remember(key, text, value)
        return value

    def _remember(self, key: K, text: str, value: V) -> None:
        with self._lock:
            self._cache.pop(key, None)
            self._cache[key] = _Cached(text, value, self._changes)
            if len(self._cache) > self._cap:
                self._evict()

    def _evict(self) -> None:
        """A tenth at a time: the unused first, then the longest unchanged."""
        by_use = sorted(self._cache, key=lambda key: not self._kind.is_unused(self._cache[key].value))
        for key in by_use[: self._cap // 10 + 1]:
            del self._cache[key]

    def _count(self) -> None:
        with self._lock:
            self._changes += 1
            due = self._changes % self._every == 0
        if due:
            self.clean_up()
