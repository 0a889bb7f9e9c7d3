"""What was found out about a text that a client sent, so that it need not be found out for each request."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

MOST_REMEMBERED = 2_000

V = TypeVar("V")


class Remembered(Generic[V]):
    """A value for each of the texts that came last. Put in only what was verified: nobody can fill it then
    with texts of his own making. The values are shared by all threads, so nothing may change them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, V] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._values)

    def get(self, text: str) -> V | None:
        return self._values.get(text)

    def put(self, text: str, value: V) -> None:
        with self._lock:
            self._values[text] = value
            if len(self._values) > MOST_REMEMBERED:
                del self._values[next(iter(self._values))]
