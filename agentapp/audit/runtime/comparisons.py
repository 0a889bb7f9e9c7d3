"""The mode ``changes``: shared objects are compared whenever a request begins or ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from agentapp.audit.runtime.changes import Change
from agentapp.audit.runtime.tracing import Tracer
from agentapp.audit.runtime.visits import Visit
from agentapp.audit.runtime.watch import Snapshot, Watch


class Comparisons:
    """The requests in progress, and the last snapshot.

    The lock guards these, and is never held while the app works. ``warn`` is called after each snapshot with
    whether it is complete.
    """

    def __init__(self, watch: Watch, warn: Callable[[bool], None], *, trace: bool, warmup: int) -> None:
        self._watch, self._warn, self._trace, self._warmup = watch, warn, trace, warmup
        # Re-entrant, because the garbage collector may close a response during a comparison.
        self._lock = threading.RLock()
        self._visits: dict[int, Visit] = {}
        self._snapshot: Snapshot | None = None

    def begin(self, visit: Visit) -> list[Change]:
        with self._lock:
            changes = self._compare()
            self._visits[id(visit)] = visit
            self._snapshot = self._watch.snapshot()
            self._warn(self._snapshot.complete)
            if self._trace:
                visit.tracer = Tracer(self._watch, self._snapshot)
            return changes

    def resume(self, visit: Visit) -> list[Change]:
        """Begin again, if the request was removed before its response was closed."""
        with self._lock:
            return self.begin(visit) if id(visit) not in self._visits else []

    def end(self, visit: Visit) -> list[Change]:
        visit.over = True
        with self._lock:
            self._visits.setdefault(id(visit), visit)
            changes = self._compare()
            self._visits.pop(id(visit), None)
            self._snapshot = self._watch.snapshot() if self._visits else None
            return changes

    def settle(self) -> list[Change]:
        with self._lock:
            changes = self._compare()
            self._snapshot = self._watch.snapshot() if self._visits else None
            return changes

    def _compare(self) -> list[Change]:
        """The changes since the last comparison. Finished requests are removed after it."""
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
