"""Guardrails written a second time, naively, with lists of everything that ever happened: what the real
ones, which keep only sums, are compared with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from agentapp.errors import BreakerOpen, GuardrailRefused
from agentapp.guardrails.breaker import Breaker, BreakerPolicy
from agentapp.guardrails.outage import OutagePolicy, Person
from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from tests.support.rounds import ROUNDS

HOUR = 3600.0
# Nearly midnight, nearly the end of the month.
START = datetime(2026, 1, 31, 22, 30, tzinfo=UTC).timestamp()
EIGHTHS = st.integers(0, 8 * 240).map(lambda n: n / 8)
STEPS = st.one_of(st.sampled_from([0.0, 0.125, 1.0, 5.0, 30.0, 61.0]), EIGHTHS)


def machine_settings(examples: int, steps: int) -> settings:
    """``examples`` for each round. There is no deadline, because a busy computer is no failure."""
    return settings(
        max_examples=examples * ROUNDS,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@dataclass
class Clock:
    """``real`` seconds only increase. What the clock shows may be an hour or two off."""

    real: float = 0.0
    off: float = 0.0
    start: float = START

    @property
    def now(self) -> float:
        return self.start + self.real + self.off

    def advance(self, seconds: float) -> None:
        self.real += seconds

    def jump(self, hours: int) -> None:
        self.off = max(-2 * HOUR, min(2 * HOUR, self.off + hours * HOUR))


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def gap(since: float, now: float) -> float:
    """A time in the future counts as long ago, except for the seconds by which clocks differ."""
    return inf if since - now > CLOCK_SKEW_SECONDS else max(0.0, now - since)


def slot(moment: float, width: float) -> float:
    return moment // width * width


def refusal_of(attempt: Callable[[], object]) -> GuardrailRefused | None:
    try:
        attempt()
    except GuardrailRefused as refusal:
        return refusal
    return None


def refused_for(breaker: Breaker, now: float) -> float:
    """How long it goes on refusing from now on, if it is asked after each wait that it names."""
    at = now
    while at - now < 10_000:
        try:
            breaker.admit(at)
        except BreakerOpen as refusal:
            at += refusal.retry_after + 1e-6
        else:
            return at - now
    raise AssertionError("it does not let go")


@dataclass(frozen=True)
class Refusal:
    """The refusal of a naive guardrail."""

    code: str
    limit: int
    used: int


# --- breaker ------------------------------------------------------------------------------------


@dataclass
class NaiveBreaker:
    """Is told every admission and outcome. An admission belongs to the epoch it was made in."""

    policy: BreakerPolicy
    epoch: int = 0
    mode: str = "closed"  # open, forced-open, forced-closed
    row: int = 0
    told: list[tuple[float, bool]] = field(default_factory=list)  # outcomes since it closed: when, and if ok
    opened: float = 0.0
    cooldown: float = 0.0
    doubled: int = 0
    probe: float | None = None
    trips: int = 0

    def says_no(self, now: float) -> bool:
        if self.mode == "open":
            cooling = gap(self.opened, now) < self.cooldown
            return cooling or (self.probe is not None and gap(self.probe, now) < self.policy.lease)
        return self.mode == "forced-open"

    def admit(self, now: float) -> Refusal | int:
        if self.says_no(now):
            return Refusal("breaker-open", self.policy.failures, self.row)
        if self.mode == "open":
            self.probe = now
            self.epoch += 1
        return self.epoch

    def is_probed(self, now: float) -> bool:
        return self.probe is not None and gap(self.probe, now) < self.policy.lease

    def probe_now(self, now: float) -> int:
        """Let a turn through, whoever decided so."""
        if self.mode == "open":
            self.probe = now
            self.epoch += 1
        return self.epoch

    def tell(self, epoch: int, now: float, outcome: str) -> None:
        """``outcome`` is succeeded, failed or abandoned."""
        if epoch != self.epoch or self.mode.startswith("forced"):
            return
        early = (
            self.mode == "open" and self.probe is not None and gap(self.opened, self.probe) < self.cooldown
        )
        if outcome == "abandoned" or (early and outcome == "failed"):
            self.epoch += self.probe is not None
            self.probe = None
        elif self.mode == "open":
            self.close() if outcome == "succeeded" else self._reopen(now)
        else:
            self._note(now, outcome == "succeeded")

    def close(self) -> None:
        self.mode, self.row, self.told, self.probe, self.doubled = "closed", 0, [], None, 0
        self.epoch += 1

    def force(self, state: str) -> None:
        self.close()
        self.mode = f"forced-{state}"

    def trip(self, now: float) -> None:
        if self.mode == "closed":
            self.trips += 1
            self._open(now, 0)

    def full_cooldown(self) -> float:
        return min(self.policy.cooldown * 2**self.doubled, self.policy.cooldown_max)

    def _reopen(self, now: float) -> None:
        self.row += 1
        self._open(now, self.doubled + 1)

    def _open(self, now: float, doubled: int) -> None:
        self.mode, self.opened, self.doubled, self.probe, self.told = "open", now, doubled, None, []
        self.cooldown = self.full_cooldown()
        self.epoch += 1

    def _note(self, now: float, ok: bool) -> None:
        width = self.policy.window / 10
        lasts = self.policy.window + width
        self.told = [one for one in self.told if gap(slot(one[0], width), now) < lasts] + [(now, ok)]
        self.row = 0 if ok else self.row + 1
        if not ok and (self.row >= self.policy.failures or self._share_is_reached()):
            self.trip(now)

    def _share_is_reached(self) -> bool:
        if self.policy.share is None or len(self.told) < self.policy.failures:
            return False
        return sum(not ok for _, ok in self.told) >= self.policy.share * len(self.told)


# --- bucket, holds, budget ------------------------------------------------------------------------


@dataclass
class NaiveBucket:
    """A list of all hits."""

    count: int | None
    seconds: float = 60.0
    hits: list[float] = field(default_factory=list)

    def used(self, now: float) -> int:
        width = self.seconds / 60
        return sum(now - slot(hit, width) < self.seconds + width for hit in self.hits)

    def refuses(self, now: float) -> Refusal | None:
        if self.count is None or self.used(now) < self.count:
            return None
        return Refusal("rate-limited", self.count, self.used(now))


@dataclass
class Reserved:
    since: float
    amount: int
    given_back: bool = False


@dataclass
class NaiveHolds:
    """A list of all reservations."""

    lease: float
    all: list[Reserved] = field(default_factory=list)

    def take(self, amount: int, now: float) -> Reserved:
        self.all.append(Reserved(now, amount))
        return self.all[-1]

    def alive(self, now: float) -> list[Reserved]:
        width = self.lease / 16
        return [
            one
            for one in self.all
            if not one.given_back and now - slot(one.since, width) < self.lease + width
        ]


@dataclass
class NaiveBudget:
    """A list of all amounts spent, each with its time."""

    limit: int | None
    period: str
    holds: NaiveHolds
    spent: list[tuple[float, int]] = field(default_factory=list)

    def used(self, now: float) -> int:
        return sum(amount for when, amount in self.spent if self._name(when) == self._name(now))

    def held(self, now: float) -> int:
        return sum(one.amount for one in self.holds.alive(now))

    def left(self, now: float) -> float:
        return inf if self.limit is None else self.limit - self.used(now) - self.held(now)

    def refuses(self, now: float) -> Refusal | None:
        if self.limit is None or self.left(now) > 0:
            return None
        return Refusal("budget-exhausted", self.limit, self.used(now))

    def _name(self, when: float) -> tuple[int, ...]:
        at = datetime.fromtimestamp(when, UTC)
        return {"day": (at.year, at.month, at.day), "month": (at.year, at.month)}.get(self.period, ())


# --- outage ---------------------------------------------------------------------------------------


@dataclass
class NaiveOutage:
    policy: OutagePolicy
    told: list[tuple[float, Person | None]] = field(default_factory=list)  # when, and who failed

    def note(self, now: float, who: Person | None, *, is_open: bool = False) -> None:
        kept = self._since(now, self.policy.window * 1.1)
        if is_open:  # nobody is forgotten; of each, the last time counts
            kept = [one for one in self.told if one[1] is None or one[1] != who]
        self.told = [*kept, (now, who)]

    def _since(self, now: float, seconds: float) -> list[tuple[float, Person | None]]:
        width = self.policy.window / 10
        return [one for one in self.told if gap(slot(one[0], width), now) < seconds]

    def _live(self, now: float) -> list[Person | None]:
        return [who for _, who in self._since(now, self.policy.window * 1.1)]

    def failing(self, now: float) -> Counter[Person]:
        return Counter(who for who in self._live(now) if who is not None)

    def users_failing(self, now: float) -> int:
        tenants = Counter(who.tenant_id for who in self.failing(now))
        most = self.policy.users_per_tenant
        return sum(count if most is None else min(count, most) for count in tenants.values())

    def is_down(self, now: float, running: int) -> bool:
        fine = self._live(now).count(None) + running
        failing = self.failing(now)
        bad = sum(min(count, 3) for count in failing.values())
        if self.policy.users_per_tenant is not None:
            for tenant in {who.tenant_id for who in failing}:
                others = sum(min(count, 3) for who, count in failing.items() if who.tenant_id != tenant)
                bad = min(bad, 2 * others)
        return self.users_failing(now) >= self.policy.users and bad >= self.policy.share * (bad + fine)

    def answered_since(self, moment: float, now: float) -> bool:
        begins = [slot(when, self.policy.window / 10) for when, who in self.told if who is None]
        return any(moment < begin <= now + CLOCK_SKEW_SECONDS for begin in begins)

    def without_probe(self, now: float, cooldown: float) -> set[Person]:
        """Who failed lately, while the breaker is open with this cool-down."""
        since = self._since(now, max(self.policy.window * 1.1, 1.2 * cooldown))
        return {who for _, who in since if who is not None}

    def tenants(self) -> set[str]:
        return {who.tenant_id for _, who in self.told if who is not None}
