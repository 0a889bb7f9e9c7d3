"""Claude as a provider: a `ModelCall` becomes a Messages API request, its stream text and a `Reply`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

import anthropic
from anthropic import AsyncStream, Stream

from agentapp.agents.provider import ModelCall, Reply, Usage
from agentapp.agents.providers.anthropic.errors import UnusableKey, serialised
from agentapp.agents.providers.anthropic.lines import calling, reach, reachable
from agentapp.agents.providers.anthropic.messages import Assembler, request_for
from agentapp.errors import ProviderGarbled

DEFAULT_BASE_URL = "https://api.anthropic.com"

C = TypeVar("C")


class AnthropicProvider:
    """Give it a key (and the address, when it is not the public one), or a ready client that stays yours."""

    def __init__(
        self, api_key: str = "", base_url: str | None = None, *, client: anthropic.Anthropic | None = None
    ) -> None:
        self._key, make = _secret(api_key, client), _maker(anthropic.Anthropic, api_key, base_url)
        self._clients = Kept(
            lambda: make(http_client=reachable(anthropic.DefaultHttpxClient(follow_redirects=False))),
            client and client.with_options(max_retries=0),
        )

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        answer, heard = Assembler(), time.monotonic()
        try:
            client = self._clients.get(os.getpid())
            with serialised(), calling(call.line):
                stream = client.messages.create(**request_for(call), stream=True)
            with stream:
                reach(call.line, stream.response, lambda: answer.complete)
                for event in Stream.raw_events(stream.response):
                    if (piece := answer.feed(event.data)) is not None:
                        yield piece
                    if isinstance(piece, str):
                        heard = time.monotonic()
                    else:
                        _check_patience(time.monotonic() - heard, call)
            answer.end()
        except Exception as exc:
            if call.line.is_hung_up:  # our own doing, and no news to anybody
                raise ProviderGarbled("The call was given up.") from None
            if not answer.complete:
                raise answer.failed(exc, self._key) from exc
        finally:
            call.line.released()
        yield answer.reply()

    def close(self) -> None:
        if (client := self._clients.drop(os.getpid())) is not None:
            client.close()


class AsyncAnthropicProvider:
    """The same for asyncio. Connections belong to an event loop, so each loop gets a client of its own."""

    def __init__(
        self,
        api_key: str = "",
        base_url: str | None = None,
        *,
        client: anthropic.AsyncAnthropic | None = None,
    ) -> None:
        self._key, make = _secret(api_key, client), _maker(anthropic.AsyncAnthropic, api_key, base_url)
        self._clients = Kept(
            lambda: make(http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False)),
            client and client.with_options(max_retries=0),
        )

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]:
        answer, heard = Assembler(), time.monotonic()
        try:
            client = self._clients.get((os.getpid(), asyncio.get_running_loop()))
            with serialised():
                stream = await client.messages.create(**request_for(call), stream=True)
            async with stream:
                async for event in AsyncStream.raw_events(stream.response):
                    if (piece := answer.feed(event.data)) is not None:
                        yield piece
                    if isinstance(piece, str):
                        heard = time.monotonic()
                    else:
                        _check_patience(time.monotonic() - heard, call)
            answer.end()
        except Exception as exc:
            if not answer.complete:
                raise answer.failed(exc, self._key) from exc
        yield answer.reply()

    async def close(self) -> None:
        if (client := self._clients.drop((os.getpid(), asyncio.get_running_loop()))) is not None:
            await client.close()


def _check_patience(silence: float, call: ModelCall) -> None:
    # Pings keep the connection's own timeout from ever ending a call, and whoever listens sees none of them.
    if silence > call.timeout:
        raise TimeoutError(f"nothing but pings for {silence:.1f} seconds")


class Kept(Generic[C]):
    """A client made at first use and kept for its owner only: a fork must not share its parent's sockets.

    An inherited client is dropped, not closed: closing takes locks that a thread of the parent may have held.
    """

    def __init__(self, make: Callable[[], C], ready: C | None = None) -> None:
        self._make, self._ready = make, ready
        self._lock = threading.Lock()
        self._made: tuple[object, C] | None = None

    def get(self, owner: object) -> C:
        if self._ready is not None:
            return self._ready
        with self._lock:
            if self._made is None or self._made[0] != owner:
                self._made = owner, self._make()
            return self._made[1]

    def drop(self, owner: object) -> C | None:
        """What ``get`` made for this owner, for the caller to close."""
        with self._lock:
            made, self._made = self._made, None
        return made[1] if made is not None and made[0] == owner else None


def _maker(kind: Callable[..., C], api_key: str, base_url: str | None) -> Callable[..., C]:
    def make(**options: Any) -> C:
        key = api_key.strip()
        # Such a key cannot be a header value, and the error that says so would quote it.
        if not key or not key.isascii() or not key.isprintable():
            raise UnusableKey
        # Retries are ours, above. Spans are off because the SDK's would miss the events read past it.
        return kind(
            api_key=key, base_url=base_url or DEFAULT_BASE_URL, max_retries=0, open_telemetry=False, **options
        )

    return make


def _secret(api_key: str, client: anthropic.Anthropic | anthropic.AsyncAnthropic | None) -> str:
    return (client.api_key or "" if client is not None else api_key).strip()
