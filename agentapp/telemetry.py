"""What the app tells about itself: so far, breaches of isolation, counted and logged."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from agentapp.errors import ForeignScope
from agentapp.isolation import RequestScope

log = logging.getLogger(__name__)


class Violations:
    """Every breach of isolation that was noticed, by kind. In a sound app all counts stay at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def left_bound(self, scope: RequestScope) -> None:
        """A request ended without its scope being cleared; the sweep before the next one found it."""
        self._record(
            "left-bound", f"request {scope.request_id} was still bound when its thread was used again"
        )

    def foreign_scope(self, refusal: ForeignScope) -> None:
        """An agent was asked to work for a scope that is not its own, and refused."""
        self._record("foreign-scope", str(refusal))

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def _record(self, kind: str, detail: str) -> None:
        with self._lock:
            self._counts[kind] += 1
        log.error("isolation violation (%s): %s", kind, detail)
