"""The requests that are under way in this worker."""

from __future__ import annotations

import threading


class OpenRequests:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, request_id: str) -> None:
        with self._lock:
            self._ids.add(request_id)

    def remove(self, request_id: str) -> None:
        with self._lock:
            self._ids.discard(request_id)
