"""The detector as a WSGI middleware."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentapp.audit.runtime.changes import Change
from agentapp.audit.runtime.comparisons import Comparisons
from agentapp.audit.runtime.objects import is_proxy
from agentapp.audit.runtime.searches import Searches
from agentapp.audit.runtime.states import as_dict, instance_reader
from agentapp.audit.runtime.visits import Visit
from agentapp.audit.runtime.watch import Watch

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

_WRAPPED = ("app", "wsgi_app", "application")  # the attributes in which middleware keeps the app


class Mode(Protocol):
    """What a mode does when a request begins or ends. Each method returns the changes it found."""

    def begin(self, visit: Visit) -> list[Change]: ...
    def resume(self, visit: Visit) -> list[Change]: ...
    def end(self, visit: Visit) -> list[Change]: ...
    def settle(self) -> list[Change]: ...


class LeakMiddleware:
    """Wraps a WSGI app, and calls ``report`` with each `Change`.

    In the mode ``changes``, shared objects are compared before and after every request. If requests overlap,
    a change names all requests that were in progress between two comparisons. In the mode ``canary``, every
    request gets a mark, and shared objects are searched for the mark when the request has ended.

    A request ends when the server closes its response. No lock is held while the app works, but in the mode
    ``changes`` requests that begin or end at the same moment wait for each other's comparison. If ``report``
    raises, the error is logged and the request goes on.
    """

    def __init__(
        self,
        app: WSGIApplication,
        packages: Iterable[str] = (),
        report: Callable[[Change], object] | None = None,
        *,
        mode: Literal["changes", "canary"] = "changes",
        exclude: Iterable[str] = (),
        trace: bool = False,
        warmup: int = 0,
        watch: Watch | None = None,
    ) -> None:
        if isinstance(packages, str) or isinstance(exclude, str):
            raise TypeError("packages and exclude are sequences of texts, not one text")
        if mode not in ("changes", "canary"):
            raise ValueError(f"mode is 'changes' or 'canary', not {mode!r}")
        if trace and mode == "canary":
            raise ValueError("only changes can be traced: a mark is found long after it was left")
        watch = watch or Watch(tuple(packages))
        self._app, self._report = app, report or _log
        self._watch = replace(
            watch, exclude=watch.exclude + tuple(exclude), roots=watch.roots + tuple(_roots(app))
        )
        self._warned = False
        self._mode: Mode
        if mode == "canary":
            self._mode = Searches(self._watch, self._warn)
        else:
            self._mode = Comparisons(self._watch, self._warn, trace=trace, warmup=warmup)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        visit = Visit(environ)

        def start(*args: Any, **kwargs: Any) -> Callable[[bytes], object]:
            visit.note_endpoint()
            return start_response(*args, **kwargs)

        self._run_guarded(self._mode.begin, visit)
        try:
            with visit.working():
                body = self._app(environ, start)
        except BaseException:
            self._run_guarded(self._mode.end, visit)
            raise
        return _Body(self, visit, body)

    def settle(self) -> None:
        """Compare now, for test clients that do not close responses. Fully read ones count as ended."""
        self._run_guarded(self._mode.settle)

    def _warn(self, is_complete: bool) -> None:
        if self._warned:
            return
        self._warned = True  # agentapp: shared ok - at worst it warns twice
        if not is_complete:
            log.warning("the leak detector looks at %d objects, and there are more", self._watch.most)
        missing = [name for name in self._watch.packages if not Watch((name,)).modules()]
        if missing:
            log.warning("the leak detector finds no loaded module of %s", ", ".join(missing))

    def _run_guarded(self, step: Callable[..., list[Change]], *args: Any) -> None:
        """Run a step and report its changes. An error in either is logged, and the request goes on."""
        try:
            changes = step(*args)
        except Exception:
            log.exception("the leak detector failed")
            return
        for change in changes:
            try:
                self._report(change)
            except Exception:
                log.exception("a change could not be reported: %s", change)


class _Body(Iterator[bytes]):
    """The body of the response. The request ends when it is closed."""

    def __init__(self, middleware: LeakMiddleware, visit: Visit, body: Iterable[bytes]) -> None:
        self._middleware, self._visit, self._body = middleware, visit, body
        self._items: Iterator[bytes] | None = None
        self._closed = False

    def __next__(self) -> bytes:
        with self._visit.working():
            if self._items is None:
                self._items = iter(self._body)
            try:
                return next(self._items)
            except StopIteration:
                self._visit.is_read = True
                raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        close = getattr(self._body, "close", None)
        if self._visit.is_read:
            self._middleware._run_guarded(self._middleware._mode.resume, self._visit)
        try:
            if close is not None:
                with self._visit.working():
                    close()
        finally:
            self._middleware._run_guarded(self._middleware._mode.end, self._visit)

    def __del__(self) -> None:
        # If the server never closes the body, the request is removed at the next comparison.
        self._visit.over = True


def _roots(app: Any) -> Iterator[tuple[str, object]]:
    """The app and the apps inside it. An app from a factory is in no module, so it must be a root."""
    met: set[int] = set()
    while app is not None and id(app) not in met and len(met) < 8:
        met.add(id(app))
        inner: Any = None
        if type(app) is MethodType:
            inner = app.__self__
        elif (reader := instance_reader(type(app))) is not None and not is_proxy(type(app)):
            attributes = as_dict(reader(app, 1000))
            inner = next((attributes[name] for name in _WRAPPED if name in attributes), None)
        yield "app", app
        app = inner


def _log(change: Change) -> None:
    log.warning("shared state: %s", change)
