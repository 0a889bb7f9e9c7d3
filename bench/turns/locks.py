"""Who waits for whom on PostgreSQL, by tenants: nobody may wait for a row that another tenant has locked.

A sample is taken every twentieth of a second, of all sessions that wait for a lock and of those who have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
# Through pg_blocking_pids, which looks into pg_locks under all of its locks at once.
WHO_WAITS = """
SELECT waits.application_name, has.application_name
FROM pg_stat_activity waits, unnest(pg_blocking_pids(waits.pid)) AS blocking(pid)
JOIN pg_stat_activity has ON has.pid = blocking.pid
WHERE waits.datname = %s AND waits.wait_event_type = 'Lock'
"""
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


def measure(systems: Systems, system: System, figures: Figures, sessions: int, seconds: float) -> None:
    taken: Samples[list[Waiting]] = Samples()

    @contextmanager
    def watched(running: Running) -> Iterator[None]:
        url = make_url(running.database_url)
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:

            def look() -> list[Waiting]:
                found = connection.execute(WHO_WAITS, (url.database,)).fetchall()
                return [Waiting(*(name or NO_TENANT for name in row)) for row in found]

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
