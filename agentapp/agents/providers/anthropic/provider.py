"""A `ModelCall` becomes a request to the Messages API; its stream becomes pieces of text and a `Reply`."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.request import getproxies

import anthropic
import httpx2
from anthropic import RequestOptions, Stream
from anthropic.types import Message, RawMessageStreamEvent

from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.providers.anthropic.cancelling import (
    Sending,
    is_cancellable,
    make_cancellable,
    register_response,
    sending_for,
)
from agentapp.agents.providers.anthropic.clients import OwnedClient, SharedClients, client_maker, key_of
from agentapp.agents.providers.anthropic.errors import UnusableKey, writing_request
from agentapp.agents.providers.anthropic.event_data import EventDataDecoder
from agentapp.agents.providers.anthropic.messages import Assembler, joined, request_for, write_json
from agentapp.agents.providers.anthropic.repeating import EVENTS, QuickClient
from agentapp.agents.providers.anthropic.transport import AnswerStream, DirectTransport
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage

# How many connections there are is limited by how many turns there are. To make one takes longer than a call.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)


class AnthropicProvider:
    """Takes a key (and the address, if it is not the public one), or a client that remains the caller's.

    ``prompt_cache`` is off for gateways that refuse `cache_control`.
    """

    def __init__(
        self,
        api_key: str = "",
        base_url: str | None = None,
        *,
        client: anthropic.Anthropic | None = None,
        prompt_cache: bool = True,
    ) -> None:
        self._key, make = key_of(api_key, client), client_maker(QuickClient, api_key, base_url)
        ready = client and client.with_options(max_retries=0)
        self._is_direct = not getproxies()
        self._clients = OwnedClient(
            lambda: _shared(make, is_direct=self._is_direct),
            None if ready is None else SharedClients(lambda: ready, math.inf),
        )
        self._prompt_cache = prompt_cache
        self._is_callers_client = client is not None  # its connections do not tell when they are written to

    def make_client(self) -> None:
        """Now, and not while the first users wait: it reads all of the system's certificates. A key that
        cannot be used is reported by each call.
        """
        with suppress(UnusableKey):
            self._clients.get(os.getpid())

    @property
    def reads_in_place(self) -> bool:
        """Not with a client of the caller's: its connections wait as they like."""
        try:
            clients = self._clients.get(os.getpid())
        except UnusableKey:
            return False
        return not self._is_callers_client and (self._is_direct or is_cancellable(clients.all[0]))

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        answer = Assembler(call.meter)
        try:
            with self._clients.get(os.getpid()).taken() as client:
                yield from self._pieces(client, call, answer)
            answer.check_complete()
        except Exception as exc:
            if call.cancellation.is_cancelled:  # the failure is our own doing, so it is not logged
                raise ProviderGarbled("The call was given up.") from None
            if not answer.complete:
                raise answer.translate_error(exc, self._key, call.model) from exc
        finally:
            call.cancellation.clear()
        yield answer.reply()

    def _pieces(
        self, client: anthropic.Anthropic, call: ModelCall, answer: Assembler
    ) -> Iterator[str | Usage]:
        last_piece, decoder = time.monotonic(), EventDataDecoder()
        if self._is_callers_client:
            answer.sent()
        with writing_request(), sending_for(Sending(call.cancellation, answer.sent, call.waiting)):
            stream = self._open(client, call)
        with closing(stream):
            for received in _received(stream, call, answer):
                said_something = False
                for piece in joined(map(answer.feed, decoder.decode(received))):
                    yield piece
                    said_something = said_something or isinstance(piece, str)
                if said_something:
                    last_piece = time.monotonic()
                else:
                    _check_silence(time.monotonic() - last_piece, call)

    def _open(self, client: anthropic.Anthropic, call: ModelCall) -> AnswerStream | httpx2.Response | EVENTS:
        request = request_for(call, self._prompt_cache)
        if self._is_callers_client or not isinstance(client, QuickClient):
            return _create(client, request)
        return _send(client, request)

    def close(self) -> None:
        if (clients := self._clients.drop(os.getpid())) is not None:
            for client in clients.all:
                client.close()


def _shared(make: Callable[..., QuickClient], *, is_direct: bool) -> SharedClients[anthropic.Anthropic]:
    certificates = httpx2.create_ssl_context()  # takes long to make, and is the same for all

    def make_client() -> anthropic.Anthropic:
        network = anthropic.DefaultHttpxClient(verify=certificates, limits=LIMITS, follow_redirects=False)
        return make(http_client=make_cancellable(network))

    if is_direct:
        direct = DirectTransport(certificates)
        client = make(http_client=anthropic.DefaultHttpxClient(transport=direct, follow_redirects=False))
        client.direct = direct
        return SharedClients(lambda: client, math.inf)

    return SharedClients(make_client)


def _create(client: anthropic.Anthropic, request: dict[str, Any]) -> Stream[RawMessageStreamEvent]:
    """The same as ``client.messages.create``, without the time that it takes to look at each argument."""
    options: RequestOptions = {"timeout": request["timeout"]}
    body = {**request, "stream": True}
    del body["timeout"]
    return client.post(
        "/v1/messages", cast_to=Message, body=body, options=options, stream=True, stream_cls=EVENTS
    )


def _send(client: QuickClient, request: dict[str, Any]) -> AnswerStream | httpx2.Response | EVENTS:
    """The same for a client of our own, with a body that is written already and an answer that we read."""
    timeout = request.pop("timeout")
    return client.send("/v1/messages", write_json({**request, "stream": True}).encode(), timeout)


def _received(
    stream: AnswerStream | httpx2.Response | EVENTS, call: ModelCall, answer: Assembler
) -> Iterable[bytes]:
    if isinstance(stream, AnswerStream):
        return stream
    response = stream.response if isinstance(stream, Stream) else stream
    register_response(call.cancellation, response, lambda: answer.complete)
    return response.iter_bytes()


class AsyncAnthropicProvider:
    """The same for asyncio. Connections belong to an event loop, so each loop gets a client of its own."""

    def __init__(
        self,
        api_key: str = "",
        base_url: str | None = None,
        *,
        client: anthropic.AsyncAnthropic | None = None,
        prompt_cache: bool = True,
    ) -> None:
        self._prompt_cache = prompt_cache
        self._key, make = key_of(api_key, client), client_maker(anthropic.AsyncAnthropic, api_key, base_url)
        self._clients = OwnedClient(
            lambda: make(http_client=anthropic.DefaultAsyncHttpxClient(follow_redirects=False)),
            client and client.with_options(max_retries=0),
        )

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Usage | Reply]:
        answer, decoder, last_piece = Assembler(call.meter), EventDataDecoder(), time.monotonic()
        try:
            client = self._clients.get((os.getpid(), asyncio.get_running_loop()))
            answer.sent()
            with writing_request():
                stream = await client.messages.create(**request_for(call, self._prompt_cache), stream=True)
            async with stream:
                async for received in stream.response.aiter_bytes():
                    said_something = False
                    for piece in joined(map(answer.feed, decoder.decode(received))):
                        yield piece
                        said_something = said_something or isinstance(piece, str)
                    if said_something:
                        last_piece = time.monotonic()
                    else:
                        _check_silence(time.monotonic() - last_piece, call)
            answer.check_complete()
        except Exception as exc:
            if not answer.complete:
                raise answer.translate_error(exc, self._key, call.model) from exc
        yield answer.reply()

    async def close(self) -> None:
        if (client := self._clients.drop((os.getpid(), asyncio.get_running_loop()))) is not None:
            await client.close()


def _check_silence(silence: float, call: ModelCall) -> None:
    # Pings keep the connection's own timeout from ever ending a call, and the reader sees none of them. Who
    # reads in place has waited for them, and counts that itself.
    if call.waiting is None and silence > call.timeout:
        raise TimeoutError(f"nothing but pings for {silence:.1f} seconds")
