"""Which request a thread or task is working for: the scope, and the binders that set and clear it.

A scope is bound only around work: around a request, around one pull of a stream, around one job in
another thread or task. It is never left bound across a ``yield``, so the next code that runs on the
same thread starts with no scope.
"""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypeVar, cast

from agentapp.errors import MissingId, NotBound

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)


def new_id() -> str:
    """128 random bits, for everything that has an id. Nobody can guess one."""
    return secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestScope:
    """A request without a user: only its own id is known."""

    request_id: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value:
                raise MissingId(field.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScope(RequestScope):
    """A request of one signed-in user."""

    tenant_id: str
    user_id: str

    def within(self, session_id: str) -> Scope:
        """The same request, about one chat session."""
        return Scope(
            request_id=self.request_id,
            tenant_id=self.tenant_id,
            user_id=self.user_id,
            session_id=session_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope(UserScope):
    """A request about one chat session."""

    session_id: str

    def of_turn(self, turn_id: str) -> TurnScope:
        """The same request, about a turn that it has begun."""
        return TurnScope(
            request_id=self.request_id,
            tenant_id=self.tenant_id,
            user_id=self.user_id,
            session_id=self.session_id,
            turn_id=turn_id,
        )

    def of_same_chat(self, other: Scope) -> bool:
        """Whether they are about the same chat of the same user, in whichever requests."""
        own = (self.session_id, self.user_id, self.tenant_id)
        return own == (other.session_id, other.user_id, other.tenant_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScope(Scope):
    """What a turn, its agents and its tools work under."""

    turn_id: str


class Binder(ABC):
    """What every binder does. `ThreadBinder` and `ContextBinder` differ only in where they keep the scope."""

    def __init__(self, on_leak: Callable[[RequestScope], None] | None = None) -> None:
        self._on_leak = on_leak or _log_leak
        self._cleanups: tuple[Callable[[], object], ...] = ()

    def at_release(self, cleanup: Callable[[], object]) -> None:
        """Run `cleanup` at the end of every binding, while the scope is still bound."""
        self._cleanups += (cleanup,)  # agentapp: shared ok - while the application is made

    def current(self) -> RequestScope:
        scope = self._get()
        if scope is None:
            raise NotBound
        return scope

    def bound_now(self) -> RequestScope | None:
        """For those who keep watch: whoever works for a scope asks for the `current` one."""
        return self._get()

    def bound(self, scope: RequestScope) -> AbstractContextManager[RequestScope]:
        """Bind for the length of a ``with`` block, then restore what was bound before."""
        return _Bound(self, scope)

    def streamed(self, scope: RequestScope, items: Iterable[T]) -> Streamed[T]:
        """The same items, with the scope bound around each pull and never across a ``yield``."""
        return Streamed(self, scope, items)

    def carried(self, scope: RequestScope, job: Callable[P, T]) -> Callable[P, T]:
        """The same job, with the scope bound while it runs, in whichever thread or (if async) task that is.

        A coroutine is bound around each of its steps, so that other tasks of the same thread never
        see its scope while it waits.
        """
        if inspect.iscoroutinefunction(job):

            @functools.wraps(job)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await _Stepped(self, scope, job(*args, **kwargs))

            return cast(Callable[P, T], run_async)

        @functools.wraps(job)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.bound(scope):
                return job(*args, **kwargs)

        return run

    def sweep(self) -> RequestScope | None:
        """Clear what an earlier request left bound here. To find anything is a defect, and it is reported."""
        found = self._get()
        if found is None:
            return None
        try:
            self._on_leak(found)
            self._run_cleanups()
        finally:
            self._set(None)
        return found

    def _run_cleanups(self) -> None:
        _run_all(self._cleanups)

    @abstractmethod
    def _get(self) -> RequestScope | None: ...

    @abstractmethod
    def _set(self, scope: RequestScope | None) -> None: ...


class ThreadBinder(Binder):
    """Keeps the scope in a ``threading.local``: for WSGI servers."""

    def __init__(self, on_leak: Callable[[RequestScope], None] | None = None) -> None:
        super().__init__(on_leak)
        self._local = threading.local()

    def _get(self) -> RequestScope | None:
        return getattr(self._local, "scope", None)

    def _set(self, scope: RequestScope | None) -> None:
        self._local.scope = scope


class ContextBinder(Binder):
    """Keeps the scope in a ``ContextVar``: for asyncio servers."""

    def __init__(self, on_leak: Callable[[RequestScope], None] | None = None) -> None:
        super().__init__(on_leak)
        self._var: ContextVar[RequestScope | None] = ContextVar("agentapp_scope", default=None)

    def _get(self) -> RequestScope | None:
        return self._var.get()

    def _set(self, scope: RequestScope | None) -> None:
        self._var.set(scope)


class _Bound(AbstractContextManager[RequestScope]):
    __slots__ = ("_before", "_binder", "_scope")

    def __init__(self, binder: Binder, scope: RequestScope) -> None:
        self._binder, self._scope = binder, scope
        self._before: RequestScope | None = None

    def __enter__(self) -> RequestScope:
        self._before = self._binder._get()
        self._binder._set(self._scope)
        return self._scope

    def __exit__(self, *exc: object) -> None:
        binder = self._binder
        try:
            # Clean-ups run only for the scope of this block. Other code may have left another one bound.
            left_bound = binder._get()
            if left_bound is not self._scope:
                binder._set(self._scope)
                binder._on_leak(left_bound or self._scope)
            binder._run_cleanups()
        finally:
            binder._set(self._before)


class Streamed(Iterator[T]):
    """A class and not a generator, so that ``close()`` reaches the items even if nothing was pulled yet."""

    def __init__(self, binder: Binder, scope: RequestScope, items: Iterable[T]) -> None:
        self._binder, self._scope = binder, scope
        with binder.bound(scope):
            self._items = iter(items)

    def __next__(self) -> T:
        with self._binder.bound(self._scope):
            return next(self._items)

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            with self._binder.bound(self._scope):
                close()


class _Stepped(Awaitable[T]):
    """Awaits a job with the scope bound around each of its steps."""

    def __init__(self, binder: Binder, scope: RequestScope, job: Awaitable[T]) -> None:
        self._binder, self._scope, self._job = binder, scope, job

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._job.__await__()
        advance: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            try:
                with self._binder.bound(self._scope):
                    waiting = advance(value)
            except StopIteration as stop:
                return cast(T, stop.value)
            try:
                advance, value = steps.send, (yield waiting)
            except BaseException as exc:
                advance, value = steps.throw, exc


def _run_all(cleanups: tuple[Callable[[], object], ...]) -> None:
    """The last one first, and each of them even if another fails. An `ExitStack` takes thrice as long."""
    if cleanups:
        try:
            cleanups[-1]()
        finally:
            _run_all(cleanups[:-1])


def _log_leak(scope: RequestScope) -> None:
    log.error("isolation: request %s was still bound when the next one began", scope.request_id)
