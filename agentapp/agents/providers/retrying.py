"""Asking again: wrappers that retry a failed model call as long as nobody saw any of its answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import replace

from agentapp.agents.provider import AsyncProvider, ModelCall, Provider, Reply, Usage
from agentapp.errors import ProviderBusy, ProviderError, ProviderGarbled

MAX_RETRIES = 2
BASE_DELAY = 0.5
MAX_DELAY = 8.0


class Retrying:
    """Same interface as the provider it wraps. Usage includes what the failed tries had cost.

    A call that was hung up on is not tried again. Its wait ends at once, unless a ``sleep`` was given.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        sleep: Callable[[float], object] | None = None,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._provider, self._sleep, self._rng = provider, sleep, rng

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        tries, sleep = _Tries(call.timeout), self._sleep or call.line.wait
        while True:
            items = self._provider.stream(call)
            try:
                for item in items:
                    yield tries.passed(item)
                return
            except ProviderError as error:
                failure = error
                if (delay := tries.failed(error, self._rng())) is None:
                    raise
            finally:
                # An abandoned answer must not wait for the garbage collector to free its connection.
                if isinstance(items, Generator):
                    items.close()
            yield tries.spent
            sleep(delay)
            if call.line.is_hung_up:
                raise failure


class AsyncRetrying:
    """The same for asyncio."""

    def __init__(
        self,
        provider: AsyncProvider,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._provider, self._sleep, self._rng = provider, sleep, rng

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]:
        tries = _Tries(call.timeout)
        while True:
            items = self._provider.stream(call)
            try:
                async for item in items:
                    yield tries.passed(item)
                return
            except ProviderError as error:
                if (delay := tries.failed(error, self._rng())) is None:
                    raise
            finally:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()
            yield tries.spent
            await self._sleep(delay)


def retry_delay(
    attempt: int, error: ProviderError, rng: float, waited: float, timeout: float
) -> float | None:
    """Seconds to wait before the try that follows failed try number ``attempt`` (from 0); None to give up.

    ``rng`` in [0, 1) picks from the whole range up to the exponential limit, so that calls which failed
    together do not come back together. All waits of one call together stay within ``timeout``.
    """
    if attempt >= MAX_RETRIES or not isinstance(error, (ProviderBusy, ProviderGarbled)):
        return None
    delay = max(rng * min(MAX_DELAY, BASE_DELAY * 2**attempt), error.retry_after or 0.0)
    return delay if waited + delay <= timeout else None


class _Tries:
    """What one call has seen so far: the failed tries, what they cost, how long was waited."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._failures = 0
        self._waited = 0.0
        self.spent = Usage()
        self._seen = False

    def passed(self, item: str | Usage | Reply) -> str | Usage | Reply:
        if isinstance(item, Usage):
            return self.spent + item
        self._seen = self._seen or bool(item)  # a Reply is never false; an empty piece shows nothing
        return replace(item, usage=self.spent + item.usage) if isinstance(item, Reply) else item

    def failed(self, error: ProviderError, rng: float) -> float | None:
        """The delay before the next try, or None after adding the cost of all tries to the error."""
        self.spent += error.usage or Usage()
        delay = None
        if not self._seen:
            delay = retry_delay(self._failures, error, rng, self._waited, self._timeout)
        if delay is None:
            error.usage, error.said_something = self.spent, error.said_something or self._seen
            return None
        self._failures += 1
        self._waited += delay
        return delay
