"""The clients of the SDK: how they are made, and which process or event loop may use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import anthropic

from agentapp.agents.providers.anthropic.errors import UnusableKey

DEFAULT_BASE_URL = "https://api.anthropic.com"

CALLS_PER_CLIENT = 32

C = TypeVar("C")


class OwnedClient(Generic[C]):
    """A client that is made at first use and given to one owner only, or a ready one that is given to all.

    An owner is a process or an event loop: a fork must not use its parent's sockets. A client inherited from
    the parent is dropped, not closed, because closing takes locks that a thread of the parent may have held.
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
        """Forget the client. It is returned, for the caller to close, if ``get`` made it for this owner."""
        with self._lock:
            made, self._made = self._made, None
        return made[1] if made is not None and made[0] == owner else None


class SharedClients(Generic[C]):
    """As many clients as are needed so that each has few calls at a time.

    A client looks at all of its connections before and after each call, and lets no other call begin
    meanwhile: one with hundreds of connections spends more time on that than on the calls.
    """

    def __init__(self, make: Callable[[], C], calls_each: float = CALLS_PER_CLIENT) -> None:
        self._make, self._calls_each = make, calls_each
        self._lock = threading.Lock()
        self._calls = [0]
        self.all = [make()]

    @contextmanager
    def taken(self) -> Iterator[C]:
        """One for a call: always the first that has room, so that the fewest connections are needed."""
        with self._lock:
            room = (number for number, calls in enumerate(self._calls) if calls < self._calls_each)
            if (number := next(room, len(self.all))) == len(self.all):
                self.all.append(self._make())
                self._calls.append(0)
            self._calls[number] += 1
        try:
            yield self.all[number]
        finally:
            with self._lock:
                self._calls[number] -= 1


def client_maker(kind: Callable[..., C], api_key: str, base_url: str | None) -> Callable[..., C]:
    def make(**options: Any) -> C:
        key = api_key.strip()
        # Such a key cannot be a header value, and the error that says so would quote it.
        if not key or not key.isascii() or not key.isprintable():
            raise UnusableKey
        # The SDK must not retry: `Retrying` does. Its spans are off because they would miss the events that
        # are read without it.
        return kind(
            api_key=key, base_url=base_url or DEFAULT_BASE_URL, max_retries=0, open_telemetry=False, **options
        )

    return make


def key_of(api_key: str, client: anthropic.Anthropic | anthropic.AsyncAnthropic | None) -> str:
    return (client.api_key or "" if client is not None else api_key).strip()
