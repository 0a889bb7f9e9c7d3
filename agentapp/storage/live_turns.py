"""What the journal reads and writes: for all running turns of a worker at once, whoever they belong to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import insert, or_, select, update

from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from agentapp.isolation import Scope
from agentapp.storage.db import Database
from agentapp.storage.log import Event
from agentapp.storage.models import LiveTurn, TurnEvents
from agentapp.storage.values import Lease, new_id, utc_now


@dataclass(frozen=True, slots=True)
class Entry:
    """New events of one turn, of which the first has the number ``first``."""

    scope: Scope
    turn_id: str
    first: int
    events: Sequence[Event]


class JournalStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def write(self, entries: Sequence[Entry], lease: Lease, *, renew: bool) -> Mapping[str, bool]:
        """One transaction. Gives the turns of this worker that are still alive, and whether each is to stop.

        What comes of a turn that is alive no more is left out: it has ended, and its end says it all.
        """
        with self._db.writing() as db:
            mine = select(LiveTurn.turn_id, LiveTurn.stop_asked).where(LiveTurn.worker == lease.worker)
            # Whoever is just taking one of them away is not waited for: that turn has ended.
            found = db.execute(mine.with_for_update(read=True, key_share=True, skip_locked=True))
            alive = dict(found.all())
            rows = [_row(entry) for entry in entries if entry.turn_id in alive]
            if rows:
                db.execute(insert(TurnEvents), rows)
            if renew and alive:
                until = utc_now() + lease.length
                db.execute(update(LiveTurn).where(LiveTurn.turn_id.in_(alive)).values(lease_until=until))
            return alive

    def alive(self, worker: str) -> Mapping[str, bool]:
        """The same, when there is nothing to write."""
        mine = select(LiveTurn.turn_id, LiveTurn.stop_asked).where(LiveTurn.worker == worker)
        with self._db.reading() as db:
            return dict(db.execute(mine).all())

    def living(self, turn_ids: Collection[str]) -> set[str]:
        """Those of these turns that run, in whichever worker."""
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.turn_id).where(LiveTurn.turn_id.in_(turn_ids))))

    def workers(self) -> set[str]:
        """All those that have turns."""
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.worker).distinct()))

    def end_leases(self, workers: Collection[str]) -> None:
        """They are known to be gone: nobody need wait until their time is over."""
        past = utc_now() - timedelta(seconds=1)
        with self._db.writing() as db:
            db.execute(update(LiveTurn).where(LiveTurn.worker.in_(workers)).values(lease_until=past))

    def abandoned(self, lease: Lease) -> list[Scope]:
        """Where a turn has lost its worker: its lease is over, or longer than any that is given out."""
        now = utc_now()
        longest = now + lease.length + timedelta(seconds=CLOCK_SKEW_SECONDS)
        dead = or_(LiveTurn.lease_until < now, LiveTurn.lease_until > longest)
        with self._db.reading() as db:
            rows = db.execute(select(LiveTurn.tenant_id, LiveTurn.user_id, LiveTurn.session_id).where(dead))
            return [
                Scope(request_id=new_id(), tenant_id=tenant_id, user_id=user_id, session_id=session_id)
                for tenant_id, user_id, session_id in rows
            ]


def _row(entry: Entry) -> dict[str, object]:
    return {
        "turn_id": entry.turn_id,
        "tenant_id": entry.scope.tenant_id,
        "user_id": entry.scope.user_id,
        "session_id": entry.scope.session_id,
        "first": entry.first,
        "events": [[kind, data] for kind, data in entry.events],
    }
