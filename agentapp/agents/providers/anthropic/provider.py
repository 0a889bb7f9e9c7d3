"""A `ModelCall` becomes a request to the Messages API; its stream becomes pieces of text and a `Reply`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import anthropic
from anthropic import AsyncStream, Stream

from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.providers.anthropic.cancelling import (
    Sending,
    make_cancellable,
    register_response,
    sending_for,
)
from agentapp.agents.providers.anthropic.clients import OwnedClient, client_maker, key_of
from agentapp.agents.providers.anthropic.errors import UnusableKey, writing_request
from agentapp.agents.providers.anthropic.messages import Assembler, request_for
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage


class AnthropicProvider:
    """Takes a key (and the address, if it is not the public one), or a client that remains the caller's."""

    def __init__(
        self, api_key: str = "", base_url: str | None = None, *, client: anthropic.Anthropic | None = None
    ) -> None:
        self._key, make = key_of(api_key, client), client_maker(anthropic.Anthropic, api_key, base_url)
        self._clients = OwnedClient(
            lambda: make(http_client=make_cancellable(anthropic.DefaultHttpxClient(follow_redirects=False))),
            client and client.with_options(max_retries=0),
        )
        self._is_callers_client = client is not None  # its connections do not tell when they are written to

    def make_client(self) -> None:
        """Now, and not while the first users wait: it reads all of the system's certificates. A key that
        cannot be used is reported by each call.
        """
        with suppress(UnusableKey):
            self._clients.get(os.getpid())

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        answer, last_piece = Assembler(call.meter), time.monotonic()
        try:
            client = self._clients.get(os.getpid())
            if self._is_callers_client:
                answer.sent()
            with writing_request(), sending_for(Sending(call.cancellation, answer.sent)):
                stream = client.messages.create(**request_for(call), stream=True)
            with stream:
                register_response(call.cancellation, stream.response, lambda: answer.complete)
                for event in Stream.raw_events(stream.response):
                    if (piece := answer.feed(event.data)) is not None:
                        yield piece
                    if isinstance(piece, str):
                        last_piece = time.monotonic()
                    else:
                        _check_silence(time.monotonic() - last_piece, call)
            answer.check_complete()
        except Exception as exc:
            if call.cancellation.is_cancelled:  # the failure is our own doing, so it is not logged
                raise ProviderGarbled("The call was given up.") from None
            if not answer.complete:
                raise answer.translate_error(exc, self._key) from exc
        finally:
            call.cancellation.clear()
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
        self._key, make = key_of(api_key, client), client_maker(anthropic.AsyncAnthropic, api_key, base_url)
        self._clients = OwnedClient(
            lambda: make(http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False)),
            client and client.with_options(max_retries=0),
        )

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]:
        answer, last_piece = Assembler(call.meter), time.monotonic()
        try:
            client = self._clients.get((os.getpid(), asyncio.get_running_loop()))
            answer.sent()
            with writing_request():
                stream = await client.messages.create(**request_for(call), stream=True)
            async with stream:
                async for event in AsyncStream.raw_events(stream.response):
                    if (piece := answer.feed(event.data)) is not None:
                        yield piece
                    if isinstance(piece, str):
                        last_piece = time.monotonic()
                    else:
                        _check_silence(time.monotonic() - last_piece, call)
            answer.check_complete()
        except Exception as exc:
            if not answer.complete:
                raise answer.translate_error(exc, self._key) from exc
        yield answer.reply()

    async def close(self) -> None:
        if (client := self._clients.drop((os.getpid(), asyncio.get_running_loop()))) is not None:
            await client.close()


def _check_silence(silence: float, call: ModelCall) -> None:
    # Pings keep the connection's own timeout from ever ending a call, and the reader sees none of them.
    if silence > call.timeout:
        raise TimeoutError(f"nothing but pings for {silence:.1f} seconds")
