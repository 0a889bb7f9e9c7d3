"""Who waits for whom on PostgreSQL, by tenants: nobody may wait for a row that another tenant has locked.

A sample is taken every twentieth of a second, of all sessions that wait for a lock and of those who have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from sqlalchemy import make_url

from bench.turns.figures import Figures, Row
from bench.turns.plans import Phase
from bench.turns.runs import run
from bench.turns.samples import Samples
from bench.turns.systems import RATES_OFF, Running, System, Systems
from bench.turns.talk import PLAIN

SAMPLE_SECONDS = 0.05
APP = "bench.turns.named_tenants:app()"
SESSIONS = """
SELECT pid, application_name, xact_start, coalesce(wait_event_type, '') = 'Lock'
FROM pg_stat_activity WHERE datname = %s
"""
# It looks into pg_locks under all of its locks at once.
BLOCKING = "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::int[]) AS waiting(pid)"
NO_TENANT = "no tenant"


@dataclass(frozen=True)
class Waiting:
    """One who waits and one who has what it waits for, by their tenants."""

    waits: str
    has: str

    @property
    def kind(self) -> str:
        if NO_TENANT in (self.waits, self.has):
            return "for or as a background job"
        return "for the own tenant" if self.waits == self.has else "FOR ANOTHER TENANT"


def who_waits(connection: psycopg.Connection[Any], database: str) -> list[Waiting]:
    """Those who are in the same transaction before and after it was asked who has what they wait for: what
    PostgreSQL says of both is not of one moment.
    """
    before = _sessions(connection, database)
    waiting = [pid for pid, (*_, waits) in before.items() if waits]
    if not waiting:
        return []
    blocking = connection.execute(BLOCKING, (waiting,)).fetchall()
    after = _sessions(connection, database)

    def is_same(pid: int) -> bool:
        return pid in before and pid in after and before[pid][:2] == after[pid][:2]

    pairs = [(pid, by) for pid, all_by in blocking for by in all_by if is_same(pid) and is_same(by)]
    return [Waiting(*(before[each][0] or NO_TENANT for each in pair)) for pair in pairs]


def _sessions(connection: psycopg.Connection[Any], database: str) -> dict[int, tuple[Any, ...]]:
    return {row[0]: tuple(row[1:]) for row in connection.execute(SESSIONS, (database,)).fetchall()}


def measure(systems: Systems, system: System, figures: Figures, sessions: int, seconds: float) -> None:
    taken: Samples[list[Waiting]] = Samples()

    @contextmanager
    def watched(running: Running) -> Iterator[None]:
        url = make_url(running.database_url)
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:

            def look() -> list[Waiting]:
                return who_waits(connection, url.database or "")

            with taken.taken(look, SAMPLE_SECONDS):
                yield

    phases = [
        Phase("loop", PLAIN.message, PLAIN.reply, sessions, seconds=seconds, warm_up=1.0),
        Phase("burst", PLAIN.message, PLAIN.reply, sessions, pause=0.5),
    ]
    found = run(systems, replace(system, app=APP), phases, RATES_OFF, watch=watched)
    seen = taken.between(found.outcomes[0].began, found.outcomes[-1].ended)
    counts = Counter(each.kind for sample in seen for each in sample)
    what = f"locks, {sessions} sessions: "
    figures.add(system.name, Row(f"{what}samples", "", 0, bases=()), len(seen))
    for kind in ("for the own tenant", "for or as a background job", "FOR ANOTHER TENANT"):
        figures.add(system.name, Row(f"{what}waited {kind}", "", 0, bases=()), counts[kind])
