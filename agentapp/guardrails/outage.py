"""Whether the model is down: recent failures, with the tenants and users they happened to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from agentapp.guardrails.times import recent, slot_start

SLOTS = 10
# A user's failures beyond this many within a window are not counted. Otherwise one user alone could make up
# the share while a few others happened to fail as well.
MOST_PER_USER = 3
# Users remembered in a window, far more than are needed. Further users' failures are counted without a name.
MOST_USERS = 256
# A user who failed does not get the probe of an open breaker for so many cool-downs: when one is over,
# somebody who did not fail is the first to try.
COOLDOWNS_WITHOUT_PROBE = 1.2


@dataclass(frozen=True, slots=True, order=True)
class Person:
    """A user and their tenant."""

    tenant_id: str
    user_id: str


UNNAMED = Person("", "")

Slot = tuple[float, int, tuple[tuple[Person, int], ...]]  # when it began, how many succeeded, who failed


@dataclass(frozen=True, slots=True)
class OutagePolicy:
    """The model is down if within the window so many different users failed, and that share of all turns.

    Of one tenant at most ``users_per_tenant`` users count, and no more failures than of all other tenants
    together. None is for one tenant's own breaker: then neither applies.
    """

    users: int = 5
    share: float = 0.5
    window: float = 30.0
    users_per_tenant: int | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """What opens a breaker on the model: the provider's, or that of one tenant.

    It is made of counts only, for slots of time that begin at the same moments everywhere: those of
    several processes can be added up.
    """

    policy: OutagePolicy
    slots: tuple[Slot, ...] = ()

    def succeeded(self, now: float, count: int = 1) -> Outage:
        return self._noted(None, now, self._live(now), count)

    def failed(self, who: Person, now: float, *, is_open: bool = False) -> Outage:
        """While the breaker is open nobody who failed is forgotten. What counts then is when each failed
        last, so only that is kept: an outage may be long.
        """
        known = self._failures(now)
        named = who if who in known or len(known) < MOST_USERS else UNNAMED
        return self._noted(named, now, _without(named, self.slots) if is_open else self._live(now))

    def without(self, who: Person) -> Outage:
        """As if nothing had happened to this user, who is erased."""
        return Outage(self.policy, tuple(_without(who, self.slots)))

    def cleared(self) -> Outage:
        """Without the failures, after the model was seen to work again."""
        return Outage(self.policy)

    def is_down(self, now: float, running: int) -> bool:
        """Turns that still run count as not failed: of a hundred turns that began together, the failing ones
        are often the first to end.
        """
        failures = self._failures(now)
        unnamed = failures.pop(UNNAMED, 0)
        tenants = _failures_by_tenant(failures)
        bad = sum(tenants.values()) + unnamed
        if self.policy.users_per_tenant is not None:
            bad = _with_no_tenant_above_the_others(tenants)
        good = sum(slot[1] for slot in self._live(now)) + running
        return self.users_failing(now) >= self.policy.users and bad >= self.policy.share * (bad + good)

    def answered_since(self, moment: float, now: float) -> bool:
        """Whether the model was seen to work in a slot that began after this moment. That is known until so
        much happens that the slot is forgotten, however long it takes.
        """
        return any(good and start > moment for start, good, _ in recent(self.slots, inf, now))

    def users_failing(self, now: float) -> int:
        """As many as count."""
        most = self.policy.users_per_tenant
        tenants = Counter(who.tenant_id for who in self._failures(now) if who != UNNAMED)
        return sum(count if most is None else min(count, most) for count in tenants.values())

    def tenant_failed(self, tenant_id: str) -> bool:
        """Whether any user of the tenant failed before the breaker opened or since."""
        return any(who.tenant_id == tenant_id for _, _, bad in self.slots for who, _ in bad)

    def seconds_without_probe(self, who: Person, cooldown: float, now: float) -> float:
        """For how long this user does not get the probe of a breaker that is open with this cool-down: 0 if
        they did not fail lately.
        """
        lasts = max(self._lasts, COOLDOWNS_WITHOUT_PROBE * cooldown)
        failed = [start for start, _, bad in recent(self.slots, lasts, now) if who in dict(bad)]
        return max(0.0, failed[-1] + lasts - now) if failed else 0.0

    def to_json(self) -> dict[str, Any]:
        if not self.slots:
            return {}
        return {"slots": [[start, good, _by_tenant(bad)] for start, good, bad in self.slots]}

    @classmethod
    def from_json(cls, policy: OutagePolicy, state: dict[str, Any]) -> Outage:
        slots = state.get("slots", ())
        return cls(policy, tuple((start, good, _people(bad)) for start, good, bad in slots))

    @property
    def _lasts(self) -> float:
        return self.policy.window * (1 + 1 / SLOTS)

    def _failures(self, now: float) -> Counter[Person]:
        counts: Counter[Person] = Counter()
        for _, _, bad in self._live(now):
            counts.update(dict(bad))
        return counts

    def _live(self, now: float) -> list[Slot]:
        return recent(self.slots, self._lasts, now)

    def _noted(self, who: Person | None, now: float, kept: Sequence[Slot], count: int = 1) -> Outage:
        start = slot_start(now, self.policy.window / SLOTS)
        _, good, bad = next((slot for slot in kept if slot[0] == start), (start, 0, ()))
        if who is None:
            good += count
        else:
            bad = tuple(sorted((Counter(dict(bad)) + Counter([who])).items()))
        others = [slot for slot in kept if slot[0] != start]
        return Outage(self.policy, tuple(sorted([*others, (start, good, bad)], key=lambda slot: slot[0])))


def _without(who: Person, slots: Sequence[Slot]) -> list[Slot]:
    left = [(start, good, tuple(one for one in bad if one[0] != who)) for start, good, bad in slots]
    return [slot for slot in left if slot[1] or slot[2]]


def _failures_by_tenant(failures: Counter[Person]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for who, count in failures.items():
        counts[who.tenant_id] += min(count, MOST_PER_USER)
    return counts


def _with_no_tenant_above_the_others(tenants: Counter[str]) -> int:
    """The failures that count: of the tenant that has most, no more than of all others together. It must not
    make up the share that takes the model away from them.
    """
    most = max(tenants.values(), default=0)
    others = sum(tenants.values()) - most
    return others + min(most, others)


def _by_tenant(bad: tuple[tuple[Person, int], ...]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for who, count in bad:
        counts.setdefault(who.tenant_id, {})[who.user_id] = count
    return counts


def _people(bad: dict[str, Any]) -> tuple[tuple[Person, int], ...]:
    """Older rows have users without their tenants. They are forgotten within the window."""
    return tuple(
        (Person(tenant_id, user_id), count)
        for tenant_id, users in bad.items()
        if isinstance(users, dict)
        for user_id, count in users.items()
    )
