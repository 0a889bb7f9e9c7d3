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
        self._cap, self._clock = cap, clock
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
            if new is old:
                return new
            with self._lock:
                if self._breakers.get(key, self._fresh) is old:
                    self._breakers[key] = new
                    if len(self._breakers) > self._cap:
                        self._drop_unused()
                    return new

    def admit(self, key: K) -> int:
        """Let one try in, or raise `BreakerOpen`. What comes back is the token for its outcome."""
        found = self._breakers.get(key, self._fresh)
        if found.opened is None and not found.forced:
            return found.token
        return self.update(key, lambda breaker: breaker.admit(self._clock())).token

    def succeeded(self, key: K, token: int) -> None:
        found = self._breakers.get(key)
        if found is not None:
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

    def _drop_unused(self) -> None:
        for key in [key for key, breaker in self._breakers.items() if breaker.is_unused]:
            del self._breakers[key]


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
