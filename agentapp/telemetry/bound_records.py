"""Log records that know for which request and turn their thread was working when they were made."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from agentapp.isolation import Binder, RequestScope

BOUND_SCOPE = "bound_scope"  # the attribute of a record


class BoundRecords:
    """Makes the records of a process, with the scope that is bound on the thread which writes them. So no
    message has to name a request, and nothing has to be cleared for the log: the binder clears it.
    """

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make
        self._binders: tuple[weakref.ref[Binder], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        record.__dict__[BOUND_SCOPE] = self._bound_now()
        return record

    def follow(self, binder: Binder) -> None:
        """Look at this binder too. Each application has one."""
        living = (each for each in self._binders if each() is not None)
        self._binders = (*living, weakref.ref(binder))

    def _bound_now(self) -> RequestScope | None:
        for each in self._binders:
            binder = each()
            if binder is not None and (scope := binder.bound_now()) is not None:
                return scope
        return None


def make_records() -> None:
    """From now on, whoever makes them. Once is enough."""
    make = logging.getLogRecordFactory()
    if not hasattr(make, "follow"):
        logging.setLogRecordFactory(BoundRecords(make))


def follow(binder: Binder) -> None:
    """Does nothing in a process whose log is not set up by us.

    Not asked by its class: after SIGHUP, a worker has another one than the master, which made the records.
    """
    add = getattr(logging.getLogRecordFactory(), "follow", None)
    if add is not None:
        add(binder)
