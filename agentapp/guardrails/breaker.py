"""The circuit breaker: a frozen value that says whether the next try may go ahead."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentapp.errors import BreakerOpen
from agentapp.guardrails.times import elapsed, recent, slot_start

State = Literal["closed", "open", "half-open", "forced-open", "forced-closed"]
Slot = tuple[float, int, int]  # when it began, how many succeeded in it, how many failed

WINDOW_SLOTS = 10
# Whoever finds a probe under way may ask again soon: it ends long before its lease does.
PROBE_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When to open and for how long.

    It opens after ``failures`` in a row or, if ``share`` is given, when that share of at least
    ``failures`` outcomes within ``window`` seconds were failures. The cool-down doubles each time
    the probe fails, up to ``cooldown_max``; ``jitter`` takes up to that part of it away, so that
    breakers which opened together do not all probe together. A probe that is not heard of for
    ``lease`` seconds is given up.
    """

    failures: int = 3
    cooldown: float = 30.0
    cooldown_max: float = 900.0
    jitter: float = 0.1
    lease: float = 170.0
    share: float | None = None
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """Every change is a new value; the clock is an argument.

    `admit` lets one try in or raises `BreakerOpen`. Its outcome comes back with the ``token`` the
    breaker had then. The token changes whenever the breaker opens, closes or sends a probe out, so
    what comes back late, from before such a change, is ignored.
    """

    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    token: int = 0
    failures: int = 0
    opened: float | None = None
    cooldown: float = 0.0
    reopened: int = 0
    probed: float | None = None
    trips: int = 0
    forced: Literal["", "open", "closed"] = ""
    recent: tuple[Slot, ...] = ()

    def admit(self, now: float) -> Breaker:
        """The breaker with one try more under way. In the closed state that is the same value."""
        if self.forced == "closed" or (self.opened is None and not self.forced):
            return self
        wait = self.wait(now)
        if wait is not None:
            raise BreakerOpen(limit=self.policy.failures, used=self.failures, retry_after=wait)
        return replace(self, probed=now, token=self.token + 1)

    def succeeded(self, token: int, now: float) -> Breaker:
        if token != self.token or self.forced:
            return self
        if self.opened is not None:
            return self.reset()
        if not self.failures and self.policy.share is None:
            return self
        return replace(self, failures=0, recent=self._noted(now, failed=False))

    def failed(self, token: int, now: float) -> Breaker:
        if token != self.token or self.forced:
            return self
        more = replace(self, failures=self.failures + 1, recent=self._noted(now, failed=True))
        if self.opened is not None:
            return more._open(now, self.reopened + 1)
        if more.failures >= self.policy.failures or more._share_reached():
            return more.tripped(now)
        return more

    def abandoned(self, token: int, now: float) -> Breaker:
        """The try came to no outcome: it was stopped, or nobody knows. A probe's place is free again."""
        if token != self.token or self.probed is None:
            return self
        return replace(self, probed=None, token=self.token + 1)

    def tripped(self, now: float) -> Breaker:
        """Open, from closed: this is what counts as a trip, once, however many are refused or fail later."""
        if self.opened is not None or self.forced:
            return self
        return replace(self, trips=self.trips + 1)._open(now, 0)

    def reset(self) -> Breaker:
        """Closed, as if nothing had happened; only the number of trips is remembered."""
        return Breaker(self.policy, token=self.token + 1, trips=self.trips)

    def force(self, state: Literal["open", "closed"]) -> Breaker:
        """Open or closed until somebody resets it, whatever happens."""
        return replace(self.reset(), forced=state)

    def state(self, now: float) -> State:
        if self.forced:
            return "forced-open" if self.forced == "open" else "forced-closed"
        if self.opened is None:
            return "closed"
        return "open" if elapsed(self.opened, now) < self.cooldown else "half-open"

    def wait(self, now: float) -> float | None:
        """Seconds until a try may go ahead, as far as can be said; None if one may now."""
        if self.forced:
            return self.policy.cooldown_max if self.forced == "open" else None
        if self.opened is None:
            return None
        left = self.cooldown - elapsed(self.opened, now)
        if left > 0:
            return left
        if self.probed is not None and (left := self.policy.lease - elapsed(self.probed, now)) > 0:
            return min(left, PROBE_PATIENCE)
        return None

    @property
    def is_unused(self) -> bool:
        """Whether a new one would decide just the same, now and later."""
        return self.opened is None and not (self.failures or self.forced or self.recent or self.token)

    @property
    def mark(self) -> str:
        """What a list of breakers goes by, without asking for the time: open, failing, or nothing to tell."""
        if self.forced or self.opened is not None:
            return "open"
        return "failing" if self.failures else ""

    def as_json(self) -> dict[str, Any]:
        """Only what differs from a new one. The policy is not part of it: it comes from the settings."""
        if self.is_unused:
            return {}
        kept = ("token", "failures", "opened", "cooldown", "reopened", "probed", "trips", "forced", "recent")
        return {name: value for name in kept if (value := getattr(self, name))}

    @classmethod
    def from_json(cls, policy: BreakerPolicy, state: dict[str, Any]) -> Breaker:
        recent = tuple((start, ok, bad) for start, ok, bad in state.get("recent", ()))
        return cls(policy, **{**state, "recent": recent})

    def _open(self, now: float, reopened: int) -> Breaker:
        full = min(self.policy.cooldown * 2.0 ** min(reopened, 60), self.policy.cooldown_max)
        # Random enough to spread, and the same for the same value: no dice inside a pure value.
        share = zlib.crc32(f"{now!r} {self.token}".encode()) / 2**32
        return replace(
            self,
            opened=now,
            cooldown=full * (1 - self.policy.jitter * share),
            reopened=reopened,
            probed=None,
            token=self.token + 1,
            recent=(),
        )

    def _noted(self, now: float, *, failed: bool) -> tuple[Slot, ...]:
        if self.policy.share is None:
            return ()
        width = self.policy.window / WINDOW_SLOTS
        start = slot_start(now, width)
        kept = {s: (ok, bad) for s, ok, bad in recent(self.recent, self.policy.window + width, now)}
        ok, bad = kept.get(start, (0, 0))
        kept[start] = (ok + (not failed), bad + failed)
        return tuple((s, ok, bad) for s, (ok, bad) in sorted(kept.items()))

    def _share_reached(self) -> bool:
        if self.policy.share is None:
            return False
        ok, bad = sum(s[1] for s in self.recent), sum(s[2] for s in self.recent)
        return ok + bad >= self.policy.failures and bad >= self.policy.share * (ok + bad)


class Breakers:
    """How a `Registry` keeps plain breakers: for programs that want nothing but those."""

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self._fresh = Breaker(policy or BreakerPolicy())

    def fresh(self, key: object) -> Breaker:
        return self._fresh

    def dump(self, value: Breaker) -> str:
        return json.dumps(value.as_json())

    def load(self, key: object, text: str) -> Breaker:
        return Breaker.from_json(self._fresh.policy, json.loads(text))

    def mark(self, value: Breaker) -> str:
        return value.mark

    def is_unused(self, value: Breaker) -> bool:
        return value.is_unused
