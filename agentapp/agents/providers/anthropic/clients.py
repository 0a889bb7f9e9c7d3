"""The clients of the SDK: how they are made, and which process or event loop may use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import anthropic
import httpx2

from agentapp.agents.providers.anthropic.errors import UnusableKey

DEFAULT_BASE_URL = "https://api.anthropic.com"

CALLS_PER_CLIENT = 32

C = TypeVar("C")


class QuickClient(anthropic.Anthropic):
    """A client for one kind of request, of which only the content and the cookies change.

    The SDK builds the address and the headers anew for each request, which takes longer than to send it. Once
    it has built the same twice, they are used again. That it does this in `_build_request` is not promised: a
    version that does not just takes its time.
    """

    _built: _Built | None = None
    _is_repeatable = False

    @property
    def user_agent(self) -> str:
        """That of the SDK, which would say the name of this class."""
        return f"Anthropic/Python {anthropic.__version__}"

    def _build_request(self, options: Any, **more: Any) -> httpx2.Request:
        built = self._built
        if built is not None and self._is_repeatable and built.is_for(options):
            return built.with_content(options.content, self._client.cookies)
        request = super()._build_request(options, **more)
        now_built = _Built(options.url, options.timeout, request)
        self._is_repeatable = built is not None and now_built.is_like(built)
        self._built = now_built
        return request


class _Built:
    """A request that the SDK has built, but for its content and cookies."""

    def __init__(self, url: str, timeout: object, request: httpx2.Request) -> None:
        self._path, self._timeout = url, timeout
        self._url, self._extensions = request.url, request.extensions
        self._headers = httpx2.Headers(request.headers)
        self._headers["content-length"] = "0"
        self._headers.pop("cookie", None)

    def is_for(self, options: Any) -> bool:
        """Whether these are the options that it was built for, but for the content."""
        is_plain = isinstance(options.content, bytes) and not options.headers and not options.params
        return is_plain and options.url == self._path and options.timeout == self._timeout

    def is_like(self, other: _Built) -> bool:
        ours, theirs = self._headers.raw, other._headers.raw
        return (self._url, self._extensions, ours) == (other._url, other._extensions, theirs)

    def with_content(self, content: bytes, cookies: httpx2.Cookies) -> httpx2.Request:
        headers = httpx2.Headers(self._headers)
        headers["content-length"] = str(len(content))
        request = httpx2.Request(
            "POST",
            self._url,
            headers=headers,
            stream=httpx2.ByteStream(content),
            extensions=self._extensions,
        )
        if cookies:
            cookies.set_cookie_header(request)
        return request


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
