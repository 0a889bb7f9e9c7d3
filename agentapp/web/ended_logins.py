"""Logins that were found to have ended, so that their cookies are a stranger's from then on."""

from __future__ import annotations

import threading
import time

REMEMBERED_SECONDS = 60.0
MOST_REMEMBERED = 10_000


class EndedLogins:
    """Without it, a copy of a cookie would take up its owner's share of pages after the owner has signed out:
    the server shares out its threads before the database is asked. Lives as long as the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, float] = {}  # the oldest first

    def add(self, token: str) -> None:
        with self._lock:
            self._found.pop(token, None)
            self._found[token] = time.monotonic()
            if len(self._found) > MOST_REMEMBERED:
                del self._found[next(iter(self._found))]

    def __contains__(self, token: object) -> bool:
        if not isinstance(token, str):
            return False
        with self._lock:
            found = self._found.get(token)
        return found is not None and time.monotonic() - found < REMEMBERED_SECONDS
