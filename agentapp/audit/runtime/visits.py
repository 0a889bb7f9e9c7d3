"""A request, from its beginning until its response is closed."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING

from agentapp.audit.runtime import marks
from agentapp.audit.runtime.changes import Caller
from agentapp.audit.runtime.tracing import Tracer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


class Visit:
    """One request. ``mark`` is set in the mode ``canary``, ``tracer`` with ``trace``."""

    __slots__ = ("_endpoint", "environ", "is_read", "mark", "method", "over", "path", "thread", "tracer")

    def __init__(self, environ: WSGIEnvironment) -> None:
        self.environ = environ
        self.method = str(environ.get("REQUEST_METHOD", ""))
        self.path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}" or "/"
        self.thread = threading.current_thread().name
        self.mark = ""
        self.tracer: Tracer | None = None
        self.is_read = False  # the response was read to its end
        self.over = False  # the response was closed or garbage-collected
        self._endpoint = ""

    def caller(self) -> Caller:
        self.note_endpoint()
        return Caller(self.method, self.path, self._endpoint, self.thread)

    def note_endpoint(self) -> None:
        """Remember Flask's endpoint, which is only known while Flask handles the request."""
        with suppress(Exception):
            self._endpoint = str(vars(self.environ["werkzeug.request"])["url_rule"].endpoint)

    def working(self) -> AbstractContextManager[None]:
        return _Working(self)


class _Working(AbstractContextManager[None]):
    """A context manager for one part of the app's work. It is never active across a ``yield``."""

    __slots__ = ("_found", "_tracing", "_visit")

    def __init__(self, visit: Visit) -> None:
        self._visit, self._tracing = visit, ExitStack()
        self._found: str | None = None

    def __enter__(self) -> None:
        if self._visit.mark:
            self._found = marks.current.get()
            marks.current.set(self._visit.mark)
        if self._visit.tracer is not None:
            self._tracing.enter_context(self._visit.tracer)

    def __exit__(self, *exc: object) -> None:
        self._tracing.close()
        if self._visit.mark:
            marks.current.set(self._found)
