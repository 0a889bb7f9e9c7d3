"""The cell: all guardrail state of one session, user, tenant or provider, and the policy it is held to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agentapp.guardrails.breaker import Breaker, BreakerPolicy
from agentapp.guardrails.bucket import Bucket, Rate
from agentapp.guardrails.budget import Allowance, Budget
from agentapp.guardrails.bulkhead import Bulkhead
from agentapp.guardrails.outage import Outage, OutagePolicy

# A cell is a tree: to look for circles in it would take a fifth of the time.
encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
Limits = tuple[tuple[str, Any], ...]  # names of limits and what they are for one cell; None is off
NEVER = 10**12  # Failures in a row that nobody reaches: such a breaker opens only when it is told to.


LIMITED = "limits"  # the mark of a cell whose breaker has nothing to tell and whose limits were changed


class Key(NamedTuple):
    scope: str
    id: str


@dataclass(frozen=True, slots=True)
class CellPolicy:
    """The limits of all cells of one scope. A limit of None counts and never refuses.

    ``concurrent`` is the limit of the bulkhead. ``lease`` is after how many seconds a reservation that
    was not given back is forgotten.
    """

    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    rate: Rate | None = None
    allowance: Allowance = field(default_factory=lambda: Allowance(None))
    concurrent: int | None = None
    lease: float = 170.0
    outage: OutagePolicy = field(default_factory=OutagePolicy)

    def changed_by(self, limits: Limits) -> CellPolicy:
        """Of a cell for which an admin has set these limits. Names that are not known change nothing."""
        policy = self
        for name, value in limits:
            match name:
                case "rate":
                    policy = replace(policy, rate=value and Rate(*value))
                case "budget":
                    policy = replace(policy, allowance=replace(policy.allowance, limit=value))
                case "concurrent":
                    policy = replace(policy, concurrent=value)
        return policy


@dataclass(frozen=True, slots=True)
class Cell:
    """The values of all limits. Each of them has a line in `to_json` and one in `from_json`."""

    breaker: Breaker
    bucket: Bucket
    budget: Budget
    bulkhead: Bulkhead
    outage: Outage
    tools: tuple[tuple[str, int], ...] = ()  # calls of each tool so far; only a session has any
    limits: Limits = ()  # what an admin has set for this user or tenant, in place of what the settings say

    def tools_after(self, calls: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        """The calls so far and these."""
        if not calls:
            return self.tools
        return tuple((Counter(dict(self.tools)) + Counter(dict(calls))).items())

    def to_json(self) -> dict[str, Any]:
        """Only what differs from a new cell. What a running turn needs to know is stored with the turn."""
        state: dict[str, Any] = {
            "breaker": self.breaker.to_json(),
            "bucket": self.bucket.to_json(),
            "budget": self.budget.to_json(),
            "room": self.bulkhead.to_json(),  # the name that stored rows have for it
            "outage": self.outage.to_json(),
            "tools": dict(self.tools),
            "limits": dict(self.limits),
        }
        return {name: value for name, value in state.items() if value}

    @classmethod
    def from_json(cls, policy: CellPolicy, state: dict[str, Any]) -> Cell:
        limits = _limits_in(state.get("limits"))
        policy = policy.changed_by(limits) if limits else policy
        return cls(
            breaker=Breaker.from_json(policy.breaker, state.get("breaker", {})),
            bucket=Bucket.from_json(policy.rate, state.get("bucket", [])),
            budget=Budget.from_json(policy.allowance, policy.lease, state.get("budget", {})),
            bulkhead=Bulkhead.from_json(policy.concurrent, policy.lease, state.get("room", [])),
            outage=Outage.from_json(policy.outage, state.get("outage", {})),
            tools=tuple(state.get("tools", {}).items()),
            limits=limits,
        )


class Cells:
    """How a `Registry` keeps cells: it makes new ones, writes them as text and reads them again."""

    def __init__(self, policies: dict[str, CellPolicy]) -> None:
        self._fresh = {scope: Cell.from_json(policy, {}) for scope, policy in policies.items()}
        self._policies = dict(policies)

    def fresh(self, key: Key) -> Cell:
        return self._fresh[key.scope]

    def dump(self, cell: Cell) -> str:
        return encode(cell.to_json())

    def load(self, key: Key, text: str) -> Cell:
        return Cell.from_json(self._policies[key.scope], json.loads(text))

    def mark(self, cell: Cell) -> str:
        """What a list of breakers goes by. It is stored beside the state, so that the list needs no scan."""
        return cell.breaker.mark or (LIMITED if cell.limits else "")

    def is_unused(self, cell: Cell) -> bool:
        return not self.mark(cell)

    def is_idle(self, cell: Cell, now: float) -> bool:
        """Whether a new one in its place would decide just the same from now on. Nobody has reserved anything
        in it, and what it has counted counts no more. That a breaker once opened and how often is forgotten.
        """
        counted = cell.bucket.used(now) or cell.budget.used(now)
        reserved = cell.budget.holds.count(now) or cell.bulkhead.holds.count(now)
        return not (self.mark(cell) or cell.tools or cell.outage.slots or counted or reserved)

    def with_limits(self, key: Key, cell: Cell, limits: Limits) -> Cell:
        """The same cell, with these limits and otherwise those of the settings."""
        return Cell.from_json(self._policies[key.scope], {**cell.to_json(), "limits": dict(limits)})

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(self._policies)

    def policy(self, scope: str) -> CellPolicy:
        """What the settings say."""
        return self._policies[scope]


def _limits_in(state: dict[str, Any] | None) -> Limits:
    if not state:
        return ()
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in state.items())
