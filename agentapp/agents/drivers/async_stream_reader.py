"""Reading a model's answer in asyncio, with an end to every wait."""

from __future__ import annotations

import asyncio
import time

from agentapp.agents.drivers.deadlines import SilenceTimer
from agentapp.agents.drivers.halting import AsyncHalt
from agentapp.agents.drivers.progress import usage_in
from agentapp.agents.provider import AsyncProvider, ModelCall, Reply
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage


class AsyncStreamReader:
    """One model call. ``spent`` is what it has cost, as far as the provider has said."""

    def __init__(self, provider: AsyncProvider, call: ModelCall) -> None:
        self._pieces = provider.stream(call)
        self._pull = asyncio.ensure_future(self._next())
        self.spent = Usage()

    async def next_item(
        self, timer: SilenceTimer, turn_ends: float, halt: AsyncHalt
    ) -> str | Reply | BaseException:
        """The next piece, the reply, or what the provider raised; an empty piece if there was none for a
        while. Raises when a deadline has passed.
        """
        began = time.monotonic()
        seconds = timer.next_wait(turn_ends - began)
        await halt.wait({self._pull}, seconds)
        if not self._pull.done():
            timer.add(seconds)
            return ""
        error = self._pull.exception()
        item = self._pull.result() if error is None else error
        self.spent = usage_in(item) or self.spent
        if not isinstance(item, (Reply, BaseException)):
            self._pull = asyncio.ensure_future(self._next())
        if isinstance(item, Usage):
            timer.add(time.monotonic() - began)
            return ""
        timer.restart()
        return item

    async def close(self) -> None:
        """End the call wherever it is: a connection with half an answer in it must not be used again."""
        self._pull.cancel()
        await asyncio.wait({self._pull})
        if not self._pull.cancelled():
            self._pull.exception()
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()

    async def _next(self) -> str | Usage | Reply:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            raise ProviderGarbled("The model's answer ended too early.") from None
