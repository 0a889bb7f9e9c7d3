"""The mode ``canary``: each request gets a mark, and shared objects are searched for it at the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from agentapp.audit.runtime import marks
from agentapp.audit.runtime.changes import Caller, Change
from agentapp.audit.runtime.visits import Visit
from agentapp.audit.runtime.watch import Watch

MAX_FINISHED_REQUESTS = 64  # The marks of this many ended requests are still searched for.
MAX_PLACES_PER_MARK = 20  # This many places are reported for one mark.


class Searches:
    """The requests in progress, and the last ones that have ended.

    The lock guards these, and is never held while the app works or while objects are searched. ``warn`` is
    called after each search with whether it was complete.
    """

    def __init__(self, watch: Watch, warn: Callable[[bool], None]) -> None:
        self._watch, self._warn = watch, warn
        # Re-entrant, because the garbage collector may close a response while the lock is held.
        self._lock = threading.RLock()
        self._visits: dict[int, Visit] = {}
        self._past: deque[tuple[str, Caller]] = deque(maxlen=MAX_FINISHED_REQUESTS)

    def begin(self, visit: Visit) -> list[Change]:
        visit.mark = marks.plant(visit.environ)
        with self._lock:
            self._retire(lambda visit: visit.over)
            self._visits[id(visit)] = visit
        return []

    def resume(self, visit: Visit) -> list[Change]:
        return []

    def end(self, visit: Visit) -> list[Change]:
        visit.over = True
        with self._lock:
            self._retire(lambda visit: visit.over)
        return self._search()

    def settle(self) -> list[Change]:
        with self._lock:
            self._retire(lambda visit: visit.over or visit.is_read)
        return self._search()

    def _retire(self, is_over: Callable[[Visit], bool]) -> None:
        for visit in [visit for visit in self._visits.values() if is_over(visit)]:
            del self._visits[id(visit)]
            self._past.append((visit.mark, visit.caller()))

    def _search(self) -> list[Change]:
        with self._lock:
            past = list(self._past)  # Without those that end during the search.
        places: dict[str, list[str]] = {}
        found_marks, is_complete = self._watch.find_marks()
        self._warn(is_complete)
        for mark, where in found_marks:
            places.setdefault(mark, []).append(where)
        with self._lock:
            found = [each for each in past if each[0] in places and each in self._past]
            for each in found:
                self._past.remove(each)
        return [
            Change(where, "canary", "nothing", "the request's mark", (caller,), caller.thread)
            for mark, caller in found
            for where in places[mark][:MAX_PLACES_PER_MARK]
        ]
