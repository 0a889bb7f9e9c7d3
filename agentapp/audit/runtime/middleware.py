"""The detector as a WSGI middleware: which request changed something shared, or left its data there."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

from agentapp.audit.runtime import objects
from agentapp.audit.runtime.tracing import Tracer
from agentapp.audit.runtime.watch import MARK, MARK_BEGINS, Caller, Change, Snapshot, Watch, named

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

HEADER = "X-Agentapp-Canary"
ARGUMENT = "agentapp_canary"
ENTRY = "agentapp.canary"
REMEMBERED = 64  # so many requests that are over are still looked for
_WRAPPED = ("app", "wsgi_app", "application")  # what middlewares call the app inside them
PLACES = 20  # so many places are reported for one mark

_current: ContextVar[str | None] = ContextVar("agentapp_canary_current", default=None)
_next: ContextVar[str | None] = ContextVar("agentapp_canary_next", default=None)


def canary() -> str:
    """The mark of the request that is under way; in a test, before a request, that of the next one.

    A test client that runs the app in this thread needs nothing else. For a server elsewhere, send the mark
    in the header `HEADER` too, so that it is known whose it is.
    """
    mark = _current.get() or _next.get()
    if mark is None:
        mark = new_mark()
        _next.set(mark)
    return mark


def new_mark() -> str:
    return MARK_BEGINS + secrets.token_hex(12)


class LeakMiddleware:
    """Wraps a WSGI app, and calls ``report`` with each `Change`.

    In the mode ``changes``, shared objects are compared before and after every request. If requests overlap,
    all those are named that were under way between two comparisons. In the mode ``canary``, every request
    is given a mark, and when it is over the mark is looked for in shared objects.

    A request is over when the server closes its response. Nothing is locked while the app works; but in the
    mode ``changes`` requests that begin or end at the same moment wait for each other's comparison. A
    ``report`` that raises is logged, and changes nothing for the request.
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
        self._app, self._report, self._warmup = app, report or _log, warmup
        self._watch = replace(
            watch, exclude=watch.exclude + tuple(exclude), roots=watch.roots + tuple(_roots(app))
        )
        self._mode, self._trace = mode, trace
        # Re-entrant: the collector may close a forgotten response in the middle of a comparison.
        self._lock = threading.RLock()
        self._visits: dict[int, _Visit] = {}
        self._snapshot: Snapshot | None = None
        self._past: deque[tuple[str, Caller]] = deque(maxlen=REMEMBERED)
        self._warned = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        visit = _Visit(environ)

        def start(*args: Any, **kwargs: Any) -> Callable[[bytes], object]:
            visit.note_endpoint()
            return start_response(*args, **kwargs)

        self._guarded(self._begin, visit)
        try:
            with visit.working():
                body = self._app(environ, start)
        except BaseException:
            self._guarded(self._end, visit)
            raise
        return _Body(self, visit, body)

    def settle(self) -> None:
        """Compare now, for a test whose client closes no responses: what was read to its end is over."""
        self._guarded(self._settle)

    # The books. The lock is held for them alone.

    def _begin(self, visit: _Visit) -> list[Change]:
        if self._mode == "canary":
            visit.plant()
            with self._lock:
                self._retire(lambda visit: visit.over)
                self._visits[id(visit)] = visit
            return []
        with self._lock:
            changes = self._compared()
            self._visits[id(visit)] = visit
            self._snapshot = self._watch.snapshot()
            self._warn(self._snapshot.complete)
            if self._trace:
                visit.tracer = Tracer(self._watch, self._snapshot)
            return changes

    def _resume(self, visit: _Visit) -> list[Change]:
        """Its response was read to the end, others came and it was forgotten; now it is closed after all."""
        with self._lock:
            is_forgotten = self._mode == "changes" and id(visit) not in self._visits
            return self._begin(visit) if is_forgotten else []

    def _end(self, visit: _Visit) -> list[Change]:
        visit.over = True
        if self._mode == "canary":
            with self._lock:
                self._retire(lambda visit: visit.over)
            return self._searched()
        with self._lock:
            self._visits.setdefault(id(visit), visit)
            changes = self._compared()
            self._visits.pop(id(visit), None)
            self._snapshot = self._watch.snapshot() if self._visits else None
            return changes

    def _settle(self) -> list[Change]:
        if self._mode == "canary":
            with self._lock:
                self._retire(lambda visit: visit.over or visit.is_read)
            return self._searched()
        with self._lock:
            changes = self._compared()
            self._snapshot = self._watch.snapshot() if self._visits else None
            return changes

    def _compared(self) -> list[Change]:
        """What changed since the last time; those that are over are named once more, and forgotten."""
        if self._snapshot is None:
            return []
        visits = list(self._visits.values())
        callers = tuple(visit.caller() for visit in visits)
        threads = ", ".join(dict.fromkeys(caller.thread for caller in callers))
        found = []
        for object_id, label, change in self._watch.changes(self._snapshot):
            by = [each for v in visits if v.tracer for each in v.tracer.suspects(object_id, label)]
            found.append(replace(change, requests=callers, thread=threads, by=tuple(dict.fromkeys(by))))
        over = [visit for visit in visits if visit.over or visit.is_read]
        for visit in over:
            self._visits.pop(id(visit), None)
        if self._warmup > 0:
            self._warmup -= len(over)
            return []
        return found

    def _retire(self, is_over: Callable[[_Visit], bool]) -> None:
        for visit in [visit for visit in self._visits.values() if is_over(visit)]:
            del self._visits[id(visit)]
            self._past.append((visit.mark, visit.caller()))

    def _searched(self) -> list[Change]:
        with self._lock:
            past = list(self._past)  # those that end while it is searched may be seen at work
        places: dict[str, list[str]] = {}
        marks, is_complete = self._watch.find_marks()
        self._warn(is_complete)
        for mark, where in marks:
            places.setdefault(mark, []).append(where)
        with self._lock:
            found = [each for each in past if each[0] in places and each in self._past]
            for each in found:
                self._past.remove(each)
        return [
            Change(where, "canary", "nothing", "the request's mark", (caller,), caller.thread)
            for mark, caller in found
            for where in places[mark][:PLACES]
        ]

    def _warn(self, is_complete: bool) -> None:
        if self._warned:
            return
        self._warned = True  # agentapp: shared ok - at worst it warns twice
        if not is_complete:
            log.warning("the leak detector looks at %d objects, and there are more", self._watch.most)
        missing = [name for name in self._watch.packages if not Watch((name,)).modules()]
        if missing:
            log.warning("the leak detector finds no loaded module of %s", ", ".join(missing))

    def _guarded(self, step: Callable[..., list[Change]], *args: Any) -> None:
        """Whatever is wrong with the detector or with who hears of it, the request goes on."""
        try:
            for change in step(*args):
                self._report(change)
        except Exception:
            log.exception("the leak detector failed")


class _Visit:
    """A request, from its beginning to the closing of its response."""

    __slots__ = ("_endpoint", "environ", "is_read", "mark", "method", "over", "path", "thread", "tracer")

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.environ = environ
        self.method = str(environ.get("REQUEST_METHOD", ""))
        self.path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}" or "/"
        self.thread = threading.current_thread().name
        self.mark = ""
        self.tracer: Tracer | None = None
        self.is_read = False  # to its end
        self.over = False  # closed, or forgotten by everybody
        self._endpoint = ""

    def caller(self) -> Caller:
        self.note_endpoint()
        return Caller(self.method, self.path, self._endpoint, self.thread)

    def note_endpoint(self) -> None:
        """Flask's, if it got so far as to know it, and as long as it does."""
        with suppress(Exception):
            self._endpoint = str(vars(self.environ["werkzeug.request"])["url_rule"].endpoint)

    def plant(self) -> None:
        """Put the mark where a request's data comes from. One that came with the request is kept."""
        header = "HTTP_" + HEADER.upper().replace("-", "_")
        sent = self.environ.get(header)
        if type(sent) is str and MARK.fullmatch(sent):
            self.mark = sent
        else:
            self.mark = _next.get() or new_mark()
        _next.set(None)
        self.environ[header] = self.environ[ENTRY] = self.mark
        query = self.environ.get("QUERY_STRING") or ""
        self.environ["QUERY_STRING"] = f"{query}{'&' if query else ''}{ARGUMENT}={self.mark}"

    def working(self) -> AbstractContextManager[None]:
        return _Working(self)


class _Working(AbstractContextManager[None]):
    """Around each piece of work of the app, and never across a ``yield``."""

    __slots__ = ("_found", "_tracing", "_visit")

    def __init__(self, visit: _Visit) -> None:
        self._visit, self._tracing = visit, ExitStack()
        self._found: str | None = None

    def __enter__(self) -> None:
        if self._visit.mark:
            self._found = _current.get()
            _current.set(self._visit.mark)
        if self._visit.tracer is not None:
            self._tracing.enter_context(self._visit.tracer)

    def __exit__(self, *exc: object) -> None:
        self._tracing.close()
        if self._visit.mark:
            _current.set(self._found)


class _Body(Iterator[bytes]):
    """The response as the app gave it. The request is over when it is closed, whoever closes it and when."""

    def __init__(self, middleware: LeakMiddleware, visit: _Visit, body: Iterable[bytes]) -> None:
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
            self._middleware._guarded(self._middleware._resume, self._visit)
        try:
            if close is not None:
                with self._visit.working():
                    close()
        finally:
            self._middleware._guarded(self._middleware._end, self._visit)

    def __del__(self) -> None:
        # A server that forgets to close leaves the request to be dropped at the next comparison.
        self._visit.over = True


def _roots(app: Any) -> Iterator[tuple[str, object]]:
    """The app, and what it is wrapped in: an app that a factory made is in no module."""
    met: set[int] = set()
    while app is not None and id(app) not in met and len(met) < 8:
        met.add(id(app))
        inner: Any = None
        if type(app) is MethodType:
            inner = app.__self__
        elif (reader := objects.instance_reader(type(app))) is not None and not objects.is_proxy(type(app)):
            attributes = named(reader(app, 1000))
            inner = next((attributes[name] for name in _WRAPPED if name in attributes), None)
        yield "app", app
        app = inner


def _log(change: Change) -> None:
    log.warning("shared state: %s", change)
