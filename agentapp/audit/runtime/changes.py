"""The report of one change, and the requests that may have made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["grew", "shrank", "changed", "rebound", "new", "gone", "canary"]


@dataclass(frozen=True, slots=True)
class Caller:
    """A request that was in progress at the time of a change."""

    method: str
    path: str
    endpoint: str  # Flask's endpoint; empty if it is not known
    thread: str

    def __str__(self) -> str:
        endpoint = f" ({self.endpoint})" if self.endpoint else ""
        return f"{self.method} {self.path}{endpoint} in {self.thread}"


@dataclass(frozen=True, slots=True)
class Change:
    """A shared object has changed. ``requests`` are all those that may have changed it."""

    where: str
    kind: Kind
    before: str
    after: str
    requests: tuple[Caller, ...] = ()
    thread: str = ""
    by: tuple[str, ...] = ()  # functions and lines, with ``trace``

    @property
    def method(self) -> str:
        return self.requests[0].method if self.requests else ""

    @property
    def path(self) -> str:
        return self.requests[0].path if self.requests else ""

    def __str__(self) -> str:
        if self.kind == "canary":
            return f"{self.where} holds data of {' or '.join(map(str, self.requests))}, which is over"
        text = f"{self.where} {self._verb()} ({self.before} -> {self.after})"
        if self.by:
            text += f", by {' or '.join(self.by)}"
        if self.requests:
            text += f", during {' or '.join(map(str, self.requests))}"
        return text

    def _verb(self) -> str:
        return {"rebound": "was rebound", "new": "is new", "gone": "is gone"}.get(self.kind, self.kind)
