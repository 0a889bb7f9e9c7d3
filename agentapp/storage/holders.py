"""Who has which connection, so that one that outlives its request is noticed and taken away."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

from agentapp.isolation import Binder

Holder = tuple[str, int]  # the request and the thread


class ConnectionHolders:  # agentapp: shared ok - each change of the dict is atomic, each key has one owner
    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._held: dict[int, tuple[Holder, Callable[[], object]]] = {}

    def watch(self, engine: Engine) -> None:
        """Every connection that its pool lends."""
        event.listen(engine, "checkout", self._lent)
        event.listen(engine, "checkin", self._returned)
        event.listen(engine, "detach", self._returned)

    def note(self, connection: object, close: Callable[[], object]) -> None:
        """This thread has it now. ``close`` takes it away."""
        scope = self._binder.bound_now()
        if scope is not None:
            self._held[id(connection)] = (scope.request_id, threading.get_ident()), close

    def forget(self, connection: object) -> None:
        self._held.pop(id(connection), None)

    def close_left(self, request_id: str) -> int:
        """The request is over on this thread: close the connections that it still has, and say how many."""
        holder = request_id, threading.get_ident()
        left = [key for key, held in self._held.copy().items() if held[0] == holder] if self._held else []
        for key in left:
            _, close = self._held.pop(key)
            close()
        return len(left)

    def _lent(self, connection: Any, record: Any, proxy: Any) -> None:
        lent = weakref.ref(proxy)  # the pool takes back what is merely dropped
        self.note(record, lambda: (left := lent()) and left.invalidate())

    def _returned(self, connection: Any, record: Any) -> None:
        self.forget(record)
