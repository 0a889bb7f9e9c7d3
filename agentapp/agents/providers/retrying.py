"""Providers that wrap another one and retry a failed model call, as long as none of its answer was shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import replace

from agentapp.agents.provider import AsyncProvider, ModelCall, Provider, Reply
from agentapp.errors import ProviderBusy, ProviderError, ProviderGarbled
from agentapp.events import Usage

MAX_RETRIES = 2
FIRST_DELAY_SECONDS = 0.5  # the most before the first retry; it doubles with each
MAX_DELAY_SECONDS = 8.0


class Retrying:
    """A `Provider` that wraps another. Usage includes what the failed attempts have cost.

    A cancelled call is not tried again. Its wait ends at once, unless a ``sleep`` was given.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        sleep: Callable[[float], object] | None = None,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._provider, self._sleep, self._rng = provider, sleep, rng

    @property
    def reads_in_place(self) -> bool:
        return self._sleep is None and getattr(self._provider, "reads_in_place", False)

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        attempts, sleep = _Attempts(call), self._sleep or call.sleep
        while True:
            items = self._provider.stream(call)
            try:
                for item in items:
                    yield attempts.add_cost_to(item)
                return
            except ProviderError as error:
                failure = error
                if (delay := attempts.next_delay(error, self._rng())) is None:
                    raise
            finally:
                # An abandoned answer must not wait for the garbage collector to free its connection.
                if isinstance(items, Generator):
                    items.close()
            yield attempts.spent
            sleep(delay)
            if call.cancellation.is_cancelled:
                failure.usage = attempts.spent  # of all attempts, and not of the last one alone
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
        attempts = _Attempts(call)
        while True:
            items = self._provider.stream(call)
            try:
                async for item in items:
                    yield attempts.add_cost_to(item)
                return
            except ProviderError as error:
                if (delay := attempts.next_delay(error, self._rng())) is None:
                    raise
            finally:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()
            yield attempts.spent
            await self._sleep(delay)


def retry_delay(
    attempt: int, error: ProviderError, rng: float, waited: float, timeout: float
) -> float | None:
    """Seconds to wait after failed attempt number ``attempt`` (from 0) before the next; None to give up.

    ``rng`` in [0, 1) picks from the whole range up to the exponential limit, so that calls which failed at
    the same time are not repeated at the same time. All waits of one call together stay within ``timeout``.
    """
    if attempt >= MAX_RETRIES or not isinstance(error, (ProviderBusy, ProviderGarbled)):
        return None
    delay = max(rng * min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**attempt), error.retry_after or 0.0)
    return delay if waited + delay <= timeout else None


class _Attempts:
    """The attempts of one call so far: how many failed, what they cost, how long was waited between them."""

    def __init__(self, call: ModelCall) -> None:
        self._timeout, self._meter = call.timeout, call.meter
        self._failures = 0
        self._waited = 0.0
        self.spent = Usage()
        self._was_shown = False

    def add_cost_to(self, item: str | Usage | Reply) -> str | Usage | Reply:
        """The same item, with the cost of the failed attempts in its usage."""
        if isinstance(item, Usage):
            return self.spent + item if self._failures else item
        # A Reply is never false. An empty piece is, and shows nothing.
        self._was_shown = self._was_shown or bool(item)
        if isinstance(item, Reply) and self._failures:
            return replace(item, usage=self.spent + item.usage)
        return item

    def next_delay(self, error: ProviderError, rng: float) -> float | None:
        """The delay before the next attempt. None to give up: then the error has the cost of all attempts."""
        self.spent = self._meter.usage if error.usage is None else self.spent + error.usage
        delay = None
        if not self._was_shown:
            delay = retry_delay(self._failures, error, rng, self._waited, self._timeout)
        if delay is None:
            error.usage, error.said_something = self.spent, error.said_something or self._was_shown
            return None
        self._failures += 1
        self._waited += delay
        return delay
