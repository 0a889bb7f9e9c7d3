"""Whether the model is down for everybody: recent failures, with the users they happened to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from agentapp.guardrails.holds import Hold, Holds
from agentapp.guardrails.times import recent, slot_start

SLOTS = 10
# A user's failures beyond this many within a window are not counted. Otherwise one user alone could make up
# the share while a few others happened to fail as well.
MOST_PER_USER = 3
# Users remembered in a window, far more than are needed. Further users' failures are counted without a name.
MOST_USERS = 256
UNNAMED = ""

Slot = tuple[float, int, tuple[tuple[str, int], ...]]  # when it began, how many succeeded, who failed


@dataclass(frozen=True, slots=True)
class OutagePolicy:
    """The model is down if within the window so many different users failed, and that share of all turns."""

    users: int = 5
    share: float = 0.5
    window: float = 30.0


@dataclass(frozen=True, slots=True)
class Outage:
    """What opens the provider's breaker. Turns that still run count as not failed: of a hundred turns that
    began together, the failing ones are often the first to end.
    """

    policy: OutagePolicy
    running: Holds
    slots: tuple[Slot, ...] = ()

    def began(self, now: float) -> Outage:
        return Outage(self.policy, self.running.take(self.running.hold(0, now), now), self.slots)

    def ended(self, since: float, now: float) -> Outage:
        return Outage(self.policy, self.running.give_back(Hold(since, 0), now), self.slots)

    def succeeded(self, now: float) -> Outage:
        return self._noted(None, now)

    def failed(self, user: str, now: float) -> Outage:
        known = self._failures(now)
        return self._noted(user if user in known or len(known) < MOST_USERS else UNNAMED, now)

    def cleared(self) -> Outage:
        """Without the failures, after the model was seen to work again."""
        return Outage(self.policy, self.running)

    def is_down(self, now: float) -> bool:
        failures = self._failures(now)
        bad = failures.pop(UNNAMED, 0)
        bad += sum(min(count, MOST_PER_USER) for count in failures.values())
        good = sum(slot[1] for slot in self._live(now)) + self.running.count(now)
        return len(failures) >= self.policy.users and bad >= self.policy.share * (bad + good)

    def users_failing(self, now: float) -> int:
        return len(self._failures(now).keys() - {UNNAMED})

    def to_json(self) -> dict[str, Any]:
        if not self.slots and not self.running.slots:
            return {}
        state: dict[str, Any] = {
            "running": self.running.to_json(),
            "slots": [[start, good, dict(bad)] for start, good, bad in self.slots],
        }
        return {name: value for name, value in state.items() if value}

    @classmethod
    def from_json(cls, policy: OutagePolicy, lease: float, state: dict[str, Any]) -> Outage:
        slots = tuple((start, good, tuple(bad.items())) for start, good, bad in state.get("slots", ()))
        return cls(policy, Holds.from_json(lease, state.get("running", [])), slots)

    def _failures(self, now: float) -> Counter[str]:
        counts: Counter[str] = Counter()
        for _, _, bad in self._live(now):
            counts.update(dict(bad))
        return counts

    def _live(self, now: float) -> list[Slot]:
        lasts = self.policy.window * (1 + 1 / SLOTS)
        return recent(self.slots, lasts, now)

    def _noted(self, user: str | None, now: float) -> Outage:
        start = slot_start(now, self.policy.window / SLOTS)
        live = self._live(now)
        _, good, bad = next((slot for slot in live if slot[0] == start), (start, 0, ()))
        if user is None:
            good += 1
        else:
            bad = tuple((Counter(dict(bad)) + Counter([user])).items())
        others = [slot for slot in live if slot[0] != start]
        return Outage(self.policy, self.running, tuple(sorted([*others, (start, good, bad)])))
