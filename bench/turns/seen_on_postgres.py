"""What PostgreSQL is seen to do during a measurement: who waits for whom, and what is sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
from sqlalchemy import make_url

from bench.turns.samples import Samples
from bench.turns.systems import Running, System

LOCK_SAMPLE_SECONDS = 0.05
LINK_SAMPLE_SECONDS = 0.1
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"


class SeenOnPostgres:
    """Sees nothing of a system that is not on PostgreSQL, and what is sent only if it is sent over a line."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._waiting: Samples[int] = Samples()
        self._sent: Samples[dict[str, int]] = Samples()

    @contextmanager
    def watched(self, running: Running) -> Iterator[None]:
        with ExitStack() as held:
            if self._system.postgres:
                url = make_url(running.database_url)
                plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
                connection = held.enter_context(psycopg.connect(plain, autocommit=True))

                def count_waiting() -> int:
                    found = connection.execute(WAITING, (url.database,)).fetchone()
                    assert found
                    return int(found[0])

                held.enter_context(self._waiting.taken(count_waiting, LOCK_SAMPLE_SECONDS))
            if self._system.link:
                held.enter_context(self._sent.taken(self._system.link.counts, LINK_SAMPLE_SECONDS))
            yield

    def between(self, began: float, ended: float, turns: int) -> dict[str, float]:
        """How many sessions wait for a lock that another one has; what is sent for each of so many turns."""
        figures: dict[str, float] = {}
        if waiting := self._waiting.between(began, ended):
            figures["wait for a lock, on average"] = sum(waiting) / len(waiting)
            figures["wait for a lock, at most"] = max(waiting)
        if (sent := self._sent.between(began, ended)) and turns:
            for name in ("statements", "round_trips"):
                count = sent[-1][name] - sent[0][name]
                figures[f"{name.replace('_', ' ')} a turn"] = count / turns
        return figures
