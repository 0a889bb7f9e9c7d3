"""Something looked at many times while a measurement runs, each time with the moment at which it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Samples(Generic[T]):
    def __init__(self) -> None:
        self._taken: list[tuple[float, T]] = []

    @contextmanager
    def taken(self, look: Callable[[], T], every: float) -> Iterator[None]:
        over = threading.Event()

        def take() -> None:
            while not over.wait(every):
                self._taken.append((time.monotonic(), look()))

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def between(self, began: float, ended: float) -> list[T]:
        """Those of that time, by the monotonic clock, which is the same in all processes of the machine."""
        return [sample for at, sample in self._taken if began <= at <= ended]
