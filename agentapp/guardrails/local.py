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
    """The same decisions as from a `Registry`, without one: gone at exit, and not shared with anybody.

    Breakers that never tripped and have no failures are dropped when there are more than ``cap``;
    the others stay, for dropping them would change a decision.
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
        self._room = cap
        self._breakers: dict[K, Breaker] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._breakers)

    def get(self, key: K) -> Breaker:
        return self._breakers.get(key, self._fresh)

    def update(self, key: K, change: Callable[[Breaker], Breaker]) -> Breaker:
        """Change one breaker. Nobody waits while nothing changes, and with most tries nothing does."""
        while True:
            old = self._breakers.get(key, self._fresh)
            new = change(old)
            if new is old or self._replaced(key, old, new):
                return new

    def admit(self, key: K) -> int:
        """Let one try in, or raise `BreakerOpen`. What comes back is the token for its outcome."""
        while True:
            old = self._breakers.get(key, self._fresh)
            if old.opened is None and not old.forced:
                return old.token
            new = old.admit(self._clock())
            if new is old or self._replaced(key, old, new):
                return new.token

    def succeeded(self, key: K, token: int) -> None:
        found = self._breakers.get(key, self._fresh)
        if found.failures or found.opened is not None or self._counts_successes:
            self.update(key, lambda breaker: breaker.succeeded(token, self._clock()))

    def failed(self, key: K, token: int) -> None:
        self.update(key, lambda breaker: breaker.failed(token, self._clock()))

    def abandoned(self, key: K, token: int) -> None:
        self.update(key, lambda breaker: breaker.abandoned(token, self._clock()))

    def guarded(
        self, key: K, counts: type[Exception] | tuple[type[Exception], ...] = Exception
    ) -> Guarded[K]:
        """``with breakers.guarded(key):``, in which an exception that ``counts`` is a failure."""
        return Guarded(self, key, counts)

    def _replaced(self, key: K, old: Breaker, new: Breaker) -> bool:
        """False if somebody else was faster: then the decision has to be made again."""
        with self._lock:
            if self._breakers.get(key, self._fresh) is not old:
                return False
            self._breakers[key] = new
            if len(self._breakers) > self._room:
                self._drop_unused()
            return True

    def _drop_unused(self) -> None:
        for key in [key for key, breaker in self._breakers.items() if breaker.is_unused]:
            del self._breakers[key]
        # If nearly all of them have to stay, not every new one is a reason to go through them again.
        self._room = max(self._cap, len(self._breakers) * 11 // 10)


class Guarded(Generic[K]):
    """No lock is held inside the block: as many may be in it at once as like."""

    __slots__ = ("_breakers", "_counts", "_key", "_token")

    def __init__(
        self, breakers: LocalBreakers[K], key: K, counts: type[Exception] | tuple[type[Exception], ...]
    ) -> None:
        self._breakers, self._key, self._counts = breakers, key, counts
        self._token = -1

    def __enter__(self) -> None:
        self._token = self._breakers.admit(self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._breakers.succeeded(self._key, self._token)
        elif issubclass(kind, self._counts):
            self._breakers.failed(self._key, self._token)
        else:
            self._breakers.abandoned(self._key, self._token)
