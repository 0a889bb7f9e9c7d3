"""How long somebody waited."""

from __future__ import annotations

import time


class Wait:
    """It begins when it is made and ends once; until then it goes on."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        self._began, self._ended = time.monotonic(), 0.0

    def end(self) -> None:
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began
