"""The cell: all guardrail state of one session, user, tenant or provider, and the limits it is held to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentapp.guardrails.breaker import Breaker, BreakerPolicy
from agentapp.guardrails.bucket import Bucket, Rate
from agentapp.guardrails.budget import Allowance, Budget
from agentapp.guardrails.bulkhead import Room
from agentapp.guardrails.holds import Holds
from agentapp.guardrails.outage import Outage, OutagePolicy

CellScope = Literal["session", "user", "tenant", "provider"]
# A cell is a tree: to look for circles in it would take a fifth of the time.
encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
NEVER = 10**12  # failures in a row that nobody reaches: such a breaker opens only when it is told to


class Key(NamedTuple):
    scope: str
    id: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What the cells of one scope are held to. None in any of them means: counted, never refused."""

    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    rate: Rate | None = None
    allowance: Allowance = field(default_factory=lambda: Allowance(None))
    room: int | None = None
    lease: float = 170.0
    outage: OutagePolicy = field(default_factory=OutagePolicy)


@dataclass(frozen=True, slots=True)
class Cell:
    breaker: Breaker
    bucket: Bucket
    budget: Budget
    room: Room
    outage: Outage
    tools: tuple[tuple[str, int], ...] = ()  # calls of each tool so far: a session's only

    def with_tools(self, calls: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        """The calls so far and these."""
        if not calls:
            return self.tools
        return tuple((Counter(dict(self.tools)) + Counter(dict(calls))).items())


class Cells:
    """How a `Registry` keeps cells: makes new ones, writes them down, reads them again."""

    def __init__(self, terms: dict[str, Terms]) -> None:
        self._fresh = {scope: _decoded(t, {}) for scope, t in terms.items()}
        self._terms = dict(terms)

    def fresh(self, key: Key) -> Cell:
        return self._fresh[key.scope]

    def dump(self, cell: Cell) -> str:
        """Only what differs from a new cell; what a running turn needs to know is in the turn."""
        state: dict[str, Any] = {
            "breaker": cell.breaker.as_json(),
            "bucket": cell.bucket.as_json(),
            "budget": cell.budget.as_json(),
            "room": cell.room.holds.as_json(),
            "outage": cell.outage.as_json(),
            "tools": dict(cell.tools),
        }
        return encode({name: value for name, value in state.items() if value})

    def load(self, key: Key, text: str) -> Cell:
        return _decoded(self._terms[key.scope], json.loads(text))

    def mark(self, cell: Cell) -> str:
        """What a list of breakers is to show: kept beside the row, so that it is found without a search."""
        return cell.breaker.mark

    def is_unused(self, cell: Cell) -> bool:
        return not self.mark(cell)


def _decoded(terms: Terms, state: dict[str, Any]) -> Cell:
    return Cell(
        Breaker.from_json(terms.breaker, state.get("breaker", {})),
        Bucket.from_json(terms.rate, state.get("bucket", [])),
        Budget.from_json(terms.allowance, terms.lease, state.get("budget", {})),
        Room(terms.room, Holds.from_json(terms.lease, state.get("room", []))),
        Outage.from_json(terms.outage, terms.lease, state.get("outage", {})),
        tuple(state.get("tools", {}).items()),
    )
