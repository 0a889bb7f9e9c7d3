"""The circuit breaker: a frozen value that says whether the next attempt may go ahead."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentapp.errors import BreakerOpen
from agentapp.guardrails.times import elapsed, recent, slot_start

State = Literal["closed", "open", "half-open", "forced-open", "forced-closed"]
Slot = tuple[float, int, int]  # when it began, how many attempts succeeded in it, how many failed

WINDOW_SLOTS = 10
# While a probe is running, asking again soon makes sense: it ends long before its lease does.
PROBE_RETRY_AFTER_SECONDS = 5.0
STORED = ("failures", "opened", "cooldown", "reopened", "probed", "trips", "forced", "recent")


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When to open and for how long. Times are in seconds.

    A breaker opens after ``failures`` in a row. If ``share`` is given, it also opens when that share
    of at least ``failures`` outcomes within ``window`` were failures. The cool-down doubles each time
    the probe fails, up to ``cooldown_max``. ``jitter`` takes up to that part of it away, so that
    breakers which opened together do not all probe together. A probe without an outcome after
    ``lease`` is given up.
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

    `admit` lets one attempt in or raises `BreakerOpen`. The outcome is reported with the ``generation``
    that the breaker had then. The generation is a counter that grows whenever the breaker opens, closes
    or sends a probe out, so an outcome from before such a change is ignored.
    """

    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    generation: int = 0
    failures: int = 0
    opened: float | None = None
    cooldown: float = 0.0
    reopened: int = 0
    probed: float | None = None
    trips: int = 0
    forced: Literal["", "open", "closed"] = ""
    recent: tuple[Slot, ...] = ()

    def admit(self, now: float) -> Breaker:
        """The breaker with one more attempt running. In the closed state that is the same value."""
        if self.forced == "closed" or (self.opened is None and not self.forced):
            return self
        wait = self.wait(now)
        if wait is not None:
            raise BreakerOpen(limit=self.policy.failures, used=self.failures, retry_after=wait)
        return replace(self, probed=now, generation=self.generation + 1)

    def admit_early(self, now: float) -> Breaker:
        """The same for an open breaker, before its cool-down is over: for somebody in whose case nothing has
        failed yet. It is one attempt at a time too.
        """
        if (left := self._probe_left(now)) > 0:
            raise BreakerOpen(limit=self.policy.failures, used=self.failures, retry_after=left)
        return replace(self, probed=now, generation=self.generation + 1)

    def succeeded(self, generation: int, now: float) -> Breaker:
        if generation != self.generation or self.forced:
            return self
        if self.opened is not None:
            return self.reset()
        if not self.failures and self.policy.share is None:
            return self
        return replace(self, failures=0, recent=self._noted(now, failed=False))

    def failed(self, generation: int, now: float) -> Breaker:
        if generation != self.generation or self.forced:
            return self
        if self._is_probed_early:  # it was known before that it is down, so nobody waits longer for this
            return self.abandoned(generation, now)
        more = replace(self, failures=self.failures + 1, recent=self._noted(now, failed=True))
        if self.opened is not None:
            return more._open(now, self.reopened + 1)
        if more.failures >= self.policy.failures or more._share_reached():
            return more.tripped(now)
        return more

    def abandoned(self, generation: int, now: float) -> Breaker:
        """The attempt has no outcome: it was stopped, or its worker died. Another probe may go out now."""
        if generation != self.generation or self.probed is None:
            return self
        return replace(self, probed=None, generation=self.generation + 1)

    def tripped(self, now: float) -> Breaker:
        """Open, from closed. This counts as one trip, however many attempts are refused or fail later."""
        if self.opened is not None or self.forced:
            return self
        return replace(self, trips=self.trips + 1)._open(now, 0)

    def reset(self) -> Breaker:
        """Closed, as if nothing had happened. Only the number of trips is kept."""
        return Breaker(self.policy, generation=self.generation + 1, trips=self.trips)

    def force(self, state: Literal["open", "closed"]) -> Breaker:
        """Open or closed until an operator resets it, whatever happens."""
        return replace(self.reset(), forced=state)

    def state(self, now: float) -> State:
        if self.forced:
            return "forced-open" if self.forced == "open" else "forced-closed"
        if self.opened is None:
            return "closed"
        return "open" if elapsed(self.opened, now) < self.cooldown else "half-open"

    def wait(self, now: float) -> float | None:
        """Seconds until an attempt may go ahead, as far as is known; None if one may now."""
        if self.forced:
            return self.policy.cooldown_max if self.forced == "open" else None
        if self.opened is None:
            return None
        left = self.cooldown - elapsed(self.opened, now)
        if left > 0:
            return left
        return self._probe_left(now) or None

    @property
    def is_unused(self) -> bool:
        """Whether a new one would decide just the same, now and later."""
        return self.opened is None and not (self.failures or self.forced or self.recent or self.generation)

    @property
    def mark(self) -> str:
        """What a list of breakers goes by. It needs no clock: "open", "forced" if it is forced closed,
        "failing", or "" to be left out.
        """
        if self.forced == "closed":
            return "forced"
        if self.forced or self.opened is not None:
            return "open"
        return "failing" if self.failures else ""

    def to_json(self) -> dict[str, Any]:
        """Only what differs from a new one. The policy is not part of it: it comes from the settings."""
        if self.is_unused:
            return {}
        state = {"token": self.generation} if self.generation else {}  # the name that stored rows have for it
        return state | {name: value for name in STORED if (value := getattr(self, name))}

    @classmethod
    def from_json(cls, policy: BreakerPolicy, state: dict[str, Any]) -> Breaker:
        kept = {name: state[name] for name in STORED if name in state}
        kept["recent"] = tuple((start, ok, bad) for start, ok, bad in state.get("recent", ()))
        return cls(policy, generation=state.get("token", 0), **kept)

    @property
    def _is_probed_early(self) -> bool:
        if self.opened is None or self.probed is None:
            return False
        return elapsed(self.opened, self.probed) < self.cooldown

    def _probe_left(self, now: float) -> float:
        """Seconds until another probe may go out, as far as is known, if one is running."""
        if self.probed is None:
            return 0.0
        return min(max(0.0, self.policy.lease - elapsed(self.probed, now)), PROBE_RETRY_AFTER_SECONDS)

    def _open(self, now: float, reopened: int) -> Breaker:
        full = min(self.policy.cooldown * 2.0 ** min(reopened, 60), self.policy.cooldown_max)
        # A checksum spreads well enough. A random number would make the result differ for the same value.
        share = zlib.crc32(f"{now!r} {self.generation}".encode()) / 2**32
        return replace(
            self,
            opened=now,
            cooldown=full * (1 - self.policy.jitter * share),
            reopened=reopened,
            probed=None,
            generation=self.generation + 1,
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
    """How a `Registry` keeps plain breakers: for programs that need no other limit."""

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self._fresh = Breaker(policy or BreakerPolicy())

    def fresh(self, key: object) -> Breaker:
        return self._fresh

    def dump(self, value: Breaker) -> str:
        return json.dumps(value.to_json())

    def load(self, key: object, text: str) -> Breaker:
        return Breaker.from_json(self._fresh.policy, json.loads(text))

    def mark(self, value: Breaker) -> str:
        return value.mark

    def is_unused(self, value: Breaker) -> bool:
        return value.is_unused
