"""Breakers by key in this process's memory: for programs that have one process and no store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Generic, TypeVar

from agentapp.guardrails.breaker import Breaker, BreakerPolicy

K = TypeVar("K", bound=Hashable)


class LocalBreakers(Generic[K]):
    """Makes the same decisions as a `Registry`, but is lost at exit and not shared with other processes.

    When there are more than ``cap`` breakers, those that never tripped and have no failures are dropped.
    The others stay, because dropping them would change a decision.
    """

    def __init__(
        self,
        policy: BreakerPolicy | None = None,
        *,
        cap: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fresh = Breaker(policy or BreakerPolicy())
        self._counts_successes = self._fresh.policy.share is not None
        self._cap, self._clock = cap, clock
        self._drop_above = cap
        self._breakers: dict[K, Breaker] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._breakers)

    def get(self, key: K) -> Breaker:
        return self._breakers.get(key, self._fresh)

    def update(self, key: K, change: Callable[[Breaker], Breaker]) -> Breaker:
        """Change one breaker. No lock is taken if nothing changes, and most attempts change nothing."""
        while True:
            old = self._breakers.get(key, self._fresh)
            new = change(old)
            if new is old or self._replaced(key, old, new):
                return new

    def admit(self, key: K) -> int:
        """Let one attempt in, or raise `BreakerOpen`. Report its outcome with the generation returned."""
        while True:
            old = self._breakers.get(key, self._fresh)
            if old.opened is None and not old.forced:
                return old.generation
            new = old.admit(self._clock())
            if new is old or self._replaced(key, old, new):
                return new.generation

    def succeeded(self, key: K, generation: int) -> None:
        found = self._breakers.get(key, self._fresh)
        if found.failures or found.opened is not None or self._counts_successes:
            self.update(key, lambda breaker: breaker.succeeded(generation, self._clock()))

    def failed(self, key: K, generation: int) -> None:
        self.update(key, lambda breaker: breaker.failed(generation, self._clock()))

    def abandoned(self, key: K, generation: int) -> None:
        self.update(key, lambda breaker: breaker.abandoned(generation, self._clock()))

    def guarded(
        self, key: K, counts: type[Exception] | tuple[type[Exception], ...] = Exception
    ) -> Guarded[K]:
        """``with breakers.guarded(key):`` reports the outcome of the block. An exception of a class in
        ``counts`` is a failure.
        """
        return Guarded(self, key, counts)

    def _replaced(self, key: K, old: Breaker, new: Breaker) -> bool:
        """False if another thread was faster: then the decision has to be made again."""
        with self._lock:
            if self._breakers.get(key, self._fresh) is not old:
                return False
            self._breakers[key] = new
            if len(self._breakers) > self._drop_above:
                self._drop_unused()
            return True

    def _drop_unused(self) -> None:
        for key in [key for key, breaker in self._breakers.items() if breaker.is_unused]:
            del self._breakers[key]
        # If nearly all of them have to stay, they must not be gone through again for every new one.
        self._drop_above = max(self._cap, len(self._breakers) * 11 // 10)


class Guarded(Generic[K]):
    """The context manager of `LocalBreakers.guarded`. No lock is held inside the block."""

    __slots__ = ("_breakers", "_counts", "_generation", "_key")

    def __init__(
        self, breakers: LocalBreakers[K], key: K, counts: type[Exception] | tuple[type[Exception], ...]
    ) -> None:
        self._breakers, self._key, self._counts = breakers, key, counts
        self._generation = -1

    def __enter__(self) -> None:
        self._generation = self._breakers.admit(self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._breakers.succeeded(self._key, self._generation)
        elif issubclass(kind, self._counts):
            self._breakers.failed(self._key, self._generation)
        else:
            self._breakers.abandoned(self._key, self._generation)
