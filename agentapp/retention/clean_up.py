"""The clean-up: what is too old is removed, a little at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

MOST_ROWS = 200  # of one short transaction
QUICK_SECONDS, SLOW_SECONDS = 0.02, 0.05


class Swept(NamedTuple):
    """What one step has removed, or would. It is nobody's if ``tenant_id`` is None."""

    kind: str
    tenant_id: str | None
    rows: int


class Sweep(Protocol):
    """One kind of things that go by age."""

    def sweep(self, now: datetime, *, dry_run: bool) -> Iterator[Swept]:
        """Each step removes some in a transaction of its own. A dry run only counts what would go, and comes
        to the same numbers if nothing happens meanwhile.
        """


class CleanUpLog(Protocol):
    def record(self, swept: Mapping[str | None, Mapping[str, int]]) -> None:
        """In the audit log: numbers by tenant and kind."""


class Tally:  # agentapp: shared ok - made for one clean-up, changed by the thread that runs it
    """What was removed so far, by tenant and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str | None, str]] = Counter()

    def add(self, swept: Swept) -> None:
        if swept.rows:
            self._counts[(swept.tenant_id, swept.kind)] += swept.rows

    def by_kind(self) -> dict[str, int]:
        kinds: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            kinds[kind] += count
        return dict(kinds)

    def by_tenant(self) -> dict[str | None, dict[str, int]]:
        tenants: dict[str | None, dict[str, int]] = {}
        for (tenant_id, kind), count in self._counts.items():
            tenants.setdefault(tenant_id, {})[kind] = count
        return tenants


class CleanUp:
    """The sweeps in their order: cells go before the chats. Otherwise the cell of a chat would be counted in
    a dry run, and be gone with its chat in a real one.
    """

    def __init__(self, sweeps: Sequence[Sweep], log: CleanUpLog) -> None:
        self._sweeps, self._log = tuple(sweeps), log

    def steps(self, now: datetime, *, dry_run: bool = False) -> Iterator[Swept]:
        for sweep in self._sweeps:
            yield from sweep.sweep(now, dry_run=dry_run)

    def record(self, tally: Tally) -> None:
        if removed := tally.by_tenant():
            self._log.record(removed)

    def run(
        self,
        now: datetime,
        *,
        dry_run: bool,
        is_over: Callable[[], bool],
        rest: Callable[[float], object],
    ) -> tuple[Tally, bool]:
        """All of it, unless it `is_over` before; and whether that was all. After each step it rests for as
        long as that took, so that others come to write.
        """
        tally, is_complete = Tally(), True
        try:
            began = time.monotonic()
            for swept in self.steps(now, dry_run=dry_run):
                tally.add(swept)
                if is_over():
                    is_complete = False
                    break
                if not dry_run:
                    rest(time.monotonic() - began)
                began = time.monotonic()
        finally:
            if not dry_run:
                self.record(tally)
        return tally, is_complete


class Pace:
    """How many to take at once, by how long the last ones took: some chats are a thousand times as long as
    others, and nobody else writes meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._most, self.count = most, 1

    def took(self, seconds: float) -> None:
        if seconds > SLOW_SECONDS:
            self.count = max(1, self.count // 2)
        elif seconds < QUICK_SECONDS:
            self.count = min(self._most, self.count * 2)
