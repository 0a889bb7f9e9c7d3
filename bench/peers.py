"""Other people's breakers and limiters, each used as its own documentation says, for bench/guardrails.py."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

HOUR = 3600
NEVER = 10**6  # failures that nobody reaches here
KEYS = [f"key-{n}" for n in range(1000)]
KEY, OPEN_KEY = KEYS[500], "open"

Work = Callable[[], object]


class Failure(Exception):
    """What a guarded call fails with."""


def no_op() -> None:
    pass


def fail() -> None:
    raise Failure


@dataclass(frozen=True)
class Peer:
    """One breaker, in memory. ``keys`` says how it is told apart from those of other keys."""

    name: str
    keys: str
    call: Work  # lets a no-op through and notes its success
    refusal: Work  # asks an open one, and catches what it raises
    guarded: Callable[[Work], Work]  # any work behind one closed breaker, ready to be called
    one: Callable[[str], object]  # a breaker for this key that has seen one failure, to be weighed


def caught(refuse: Work, refused: type[Exception]) -> Work:
    def refusal() -> None:
        try:
            refuse()
        except refused:
            return
        raise AssertionError("a call was let through that should have been refused")

    return refusal


class ByKey:
    """What one has to write around a breaker that knows no keys."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(key)
            return self._made[key]


def ignoring_failure(work: Work) -> None:
    with contextlib.suppress(Failure):
        work()


def tripped(breaker: Any, refused: type[Exception], call: Callable[[Any, Work], object]) -> Any:
    """Open, after failures enough. Some say so already when the last of them happens."""
    for _ in range(20):
        try:
            call(breaker, fail)
        except Failure:
            pass
        except refused:
            break
    return breaker


def circuitbreaker_one() -> Peer:
    from circuitbreaker import CircuitBreaker, CircuitBreakerError

    def make(work: Work) -> Work:
        return CircuitBreaker(failure_threshold=3, recovery_timeout=HOUR)(work)

    open_one = make(fail)
    tripped(open_one, CircuitBreakerError, lambda breaker, _: breaker())
    return Peer(
        "circuitbreaker",
        "one object, no keys, no lock",
        make(no_op),
        caught(open_one, CircuitBreakerError),
        make,
        lambda key: _failed_once(CircuitBreaker(failure_threshold=3, name=key)(fail)),
    )


def circuitbreaker_by_key() -> Peer:
    from circuitbreaker import CircuitBreaker, CircuitBreakerError

    def make(key: str, work: Work = no_op) -> Work:
        return CircuitBreaker(failure_threshold=3, recovery_timeout=HOUR, name=key)(work)

    breakers, failing = ByKey(make), ByKey(partial(make, work=fail))
    for key in KEYS:
        breakers[key]()
    tripped(failing, CircuitBreakerError, lambda all_of_them, _: all_of_them[OPEN_KEY]())
    return Peer(
        "circuitbreaker",
        "a dict behind a lock",
        lambda: breakers[KEY](),
        caught(lambda: failing[OPEN_KEY](), CircuitBreakerError),
        lambda work: ByKey(partial(make, work=work))[KEY],
        lambda key: _failed_once(make(key, fail)),
    )


def _failed_once(work: Work) -> Work:
    ignoring_failure(work)
    return work


def pybreaker_in_memory() -> Peer:
    from pybreaker import CircuitBreaker

    def make(key: str) -> CircuitBreaker:
        return CircuitBreaker(fail_max=3, reset_timeout=HOUR, name=key)

    return _pybreaker("pybreaker", make)


def pybreaker_on_redis(socket: str) -> Peer:
    import redis
    from pybreaker import CircuitBreaker, CircuitRedisStorage

    client = redis.Redis(unix_socket_path=socket)

    def make(key: str) -> CircuitBreaker:
        storage = CircuitRedisStorage("closed", client, namespace=f"calls:{key}")
        return CircuitBreaker(fail_max=3, reset_timeout=HOUR, name=key, state_storage=storage)

    return _pybreaker("pybreaker on Redis", make)


def _pybreaker(name: str, make: Callable[[str], Any]) -> Peer:
    from pybreaker import CircuitBreakerError

    def failed_once(key: str) -> Any:
        breaker = make(key)
        ignoring_failure(lambda: breaker.call(fail))
        return breaker

    breakers = ByKey(make)
    for key in KEYS:
        breakers[key]
    tripped(breakers[OPEN_KEY], CircuitBreakerError, lambda breaker, work: breaker.call(work))
    return Peer(
        name,
        "a dict behind a lock",
        lambda: breakers[KEY].call(no_op),
        caught(lambda: breakers[OPEN_KEY].call(no_op), CircuitBreakerError),
        lambda work: lambda: breakers[KEY].call(work),
        failed_once,
    )


def purgatory() -> Peer:
    from purgatory import SyncCircuitBreakerFactory
    from purgatory.domain.model import OpenedState

    breakers = SyncCircuitBreakerFactory(default_threshold=3, default_ttl=HOUR)

    def call(key: str, work: Work) -> object:
        with breakers.get_breaker(key):
            return work()

    def failed_once(key: str) -> object:
        ignoring_failure(lambda: call(key, fail))
        return breakers.uow.contexts.get(key)

    for key in KEYS:
        call(key, no_op)
    tripped(OPEN_KEY, OpenedState, call)

    def refuse() -> None:
        try:
            call(OPEN_KEY, no_op)
        except OpenedState as refusal:
            # It raises one and the same exception each time, whose traceback grows with every
            # refusal. Without this line what is measured would be the length of the run.
            refusal.__traceback__ = None
            raise

    return Peer(
        "purgatory",
        "its own, no lock",
        lambda: call(KEY, no_op),
        caught(refuse, OpenedState),
        lambda work: lambda: call(KEY, work),
        failed_once,
    )


def interlock() -> Peer:
    from interlock import CircuitOpenError, Config, Registry

    config = Config(wait_duration_in_open=HOUR, minimum_number_of_calls=3, window_size=10)
    breakers = Registry(config=config)

    def failed_once(key: str) -> object:
        breaker = breakers.get(key)
        ignoring_failure(lambda: breaker.call_sync(fail))
        return breaker

    for key in KEYS:
        breakers.get(key)
    tripped(breakers.get(OPEN_KEY), CircuitOpenError, lambda breaker, work: breaker.call_sync(work))
    return Peer(
        "interlock-cb",
        "its own registry",
        lambda: breakers.get(KEY).call_sync(no_op),
        caught(lambda: breakers.get(OPEN_KEY).call_sync(no_op), CircuitOpenError),
        lambda work: lambda: breakers.get(KEY).call_sync(work),
        failed_once,
    )


def resilient_circuit() -> Peer:
    from resilient_circuit.circuit_breaker import CircuitProtectorPolicy
    from resilient_circuit.exceptions import ProtectedCallError
    from resilient_circuit.storage.memory import InMemoryStorage

    storage = InMemoryStorage(max_entries=None)

    def make(key: str, work: Work = no_op) -> Work:
        policy = CircuitProtectorPolicy(
            resource_key=key, storage=storage, cooldown=timedelta(hours=1), failure_limit=Fraction(2, 3)
        )
        return policy(work)

    breakers, failing = ByKey(make), ByKey(partial(make, work=fail))
    for key in KEYS:
        breakers[key]
    tripped(failing, ProtectedCallError, lambda all_of_them, _: all_of_them[OPEN_KEY]())
    return Peer(
        "resilient-circuit",
        "a dict behind a lock",
        lambda: breakers[KEY](),
        caught(lambda: failing[OPEN_KEY](), ProtectedCallError),
        lambda work: ByKey(partial(make, work=work))[KEY],
        lambda key: _failed_once(make(key, fail)),
    )


def limiters(socket: str) -> dict[str, Work]:
    """A hit each. The moving windows remember every hit, so the keys take turns and none gets many."""
    from limits import RateLimitItemPerMinute
    from limits.storage import MemoryStorage, RedisStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    item = RateLimitItemPerMinute(NEVER)
    keys = itertools.cycle(KEYS)

    def hit(limiter: Any) -> Work:
        return lambda: limiter.hit(item, next(keys))

    redis = f"redis+unix://{socket}"
    return {
        "limits in memory, fixed window": hit(FixedWindowRateLimiter(MemoryStorage())),
        "limits in memory, moving window": hit(MovingWindowRateLimiter(MemoryStorage())),
        "limits on Redis, fixed window": hit(FixedWindowRateLimiter(RedisStorage(redis, key_prefix="F"))),
        "limits on Redis, moving window": hit(MovingWindowRateLimiter(RedisStorage(redis, key_prefix="M"))),
    }


class Shared(Protocol):
    """Failures counted in a store that several processes share."""

    def failed(self, key: str) -> object: ...
    def counted(self, key: str) -> int: ...
    def close(self) -> None: ...


class SharedPybreaker:
    def __init__(self, socket: str) -> None:
        import redis
        from pybreaker import CircuitBreaker, CircuitRedisStorage

        client = redis.Redis(unix_socket_path=socket)
        self.close = client.close
        self._breakers = ByKey(
            lambda key: CircuitBreaker(
                fail_max=NEVER, state_storage=CircuitRedisStorage("closed", client, namespace=key)
            )
        )

    def failed(self, key: str) -> None:
        ignoring_failure(lambda: self._breakers[key].call(fail))

    def counted(self, key: str) -> int:
        return int(self._breakers[key].fail_counter)


class SharedPurgatory:
    """Its async half: the sync one asks the asyncio client of Redis and cannot work (3.0.1)."""

    def __init__(self, socket: str) -> None:
        from purgatory import AsyncCircuitBreakerFactory, AsyncRedisUnitOfWork

        self._loop = asyncio.new_event_loop()
        self._breakers = AsyncCircuitBreakerFactory(
            default_threshold=NEVER, uow=AsyncRedisUnitOfWork(f"unix://{socket}")
        )
        self._loop.run_until_complete(self._breakers.initialize())

    def failed(self, key: str) -> None:
        self._loop.run_until_complete(self._failed(key))

    async def _failed(self, key: str) -> None:
        try:
            async with await self._breakers.get_breaker(key):
                fail()
        except Failure:
            pass

    def counted(self, key: str) -> int:
        breaker = self._loop.run_until_complete(self._breakers.get_breaker(key))
        return int(breaker.context.failure_count or 0)

    def close(self) -> None:
        repository: Any = self._breakers.uow.contexts
        self._loop.run_until_complete(repository.redis.aclose())
        self._loop.close()


class SharedInterlock:
    """Shares that a breaker is open, not what led to it: each process counts its own failures."""

    def __init__(self, socket: str) -> None:
        import redis
        from interlock import Config, Registry
        from interlock.integrations.redis import RedisStorage

        config = Config(minimum_number_of_calls=10_000, window_size=10_000)
        self._breakers = Registry(config=config, storage=RedisStorage(redis.Redis(unix_socket_path=socket)))

    def failed(self, key: str) -> None:
        ignoring_failure(lambda: self._breakers.get(key).call_sync(fail))

    def counted(self, key: str) -> int:
        return self._breakers.get(key).snapshot().failed_calls

    def close(self) -> None:
        self._breakers.close_all()


class SharedResilientCircuit:
    """On PostgreSQL, with a new connection for every access."""

    def __init__(self, url: str) -> None:
        from resilient_circuit.circuit_breaker import CircuitProtectorPolicy
        from resilient_circuit.storage.postgres import PostgresStorage

        logging.getLogger("resilient_circuit").setLevel(logging.CRITICAL)
        os.environ["RC_DB_AUTO_CREATE"] = "1"
        self._storage = PostgresStorage(url.replace("+psycopg", ""))
        self._breakers = ByKey(
            lambda key: CircuitProtectorPolicy(
                resource_key=key, storage=self._storage, failure_limit=Fraction(NEVER - 1, NEVER)
            )(fail)
        )

    def failed(self, key: str) -> None:
        ignoring_failure(self._breakers[key])

    def counted(self, key: str) -> int:
        return int((self._storage.get_state(key) or {}).get("failure_count", 0))

    def close(self) -> None:
        pass


class SharedLimits:
    """Not a breaker, but it counts: hits in a fixed window."""

    def __init__(self, socket: str) -> None:
        from limits import RateLimitItemPerDay
        from limits.storage import RedisStorage
        from limits.strategies import FixedWindowRateLimiter

        self._item = RateLimitItemPerDay(NEVER)
        storage = RedisStorage(f"redis+unix://{socket}")
        self._limiter = FixedWindowRateLimiter(storage)
        self.close = storage.storage.close

    def failed(self, key: str) -> object:
        return self._limiter.hit(self._item, key)

    def counted(self, key: str) -> int:
        return NEVER - self._limiter.get_window_stats(self._item, key).remaining
