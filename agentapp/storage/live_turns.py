"""The running turns of all workers and users: their leases, their events so far, requests to stop them.

The table `turn_events` holds the events of running turns. A foreign key removes them when the turn ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, CursorResult, and_, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import aliased

from agentapp.events import Event, from_json
from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from agentapp.isolation import Scope, new_id
from agentapp.storage.db import Database
from agentapp.storage.models import LiveTurn, TurnEvents
from agentapp.storage.owned import OWNER, in_session, owner_parameters
from agentapp.storage.values import utc_now
from agentapp.turns.values import Lease, NewEvents

MAX_TURNS_PER_QUERY = 100  # each adds an OR, and SQLite limits how deep an expression may be


_later = aliased(TurnEvents)
# For a turn that goes on spending without an event, as while the model writes the input of a tool.
UPDATE_SPENT = (
    update(TurnEvents)
    .where(in_session(OWNER, TurnEvents), TurnEvents.turn_id == bindparam("turn"))
    .where(
        TurnEvents.first
        == select(func.max(_later.first)).where(_later.turn_id == bindparam("turn")).scalar_subquery()
    )
    .values(spent=bindparam("spent_now"))
)


class SqlLiveTurnStore:
    """A `turns.stores.LiveTurnStore`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def write(self, new: Sequence[NewEvents], lease: Lease, *, renew: bool) -> Mapping[str, bool]:
        with self._db.writing() as db:
            mine = select(LiveTurn.turn_id, LiveTurn.stop_asked).where(LiveTurn.worker == lease.worker)
            # A row that another transaction is just removing is not waited for: that turn has ended.
            found = db.execute(mine.with_for_update(read=True, key_share=True, skip_locked=True))
            alive = dict(found.all())
            stored = [each for each in new if each.turn_id in alive]
            if rows := [_row(each) for each in stored if each.events]:
                db.execute(insert(TurnEvents), rows)
            if spent := [_spent(each) for each in stored if not each.events]:
                db.connection().execute(UPDATE_SPENT, spent)
            if renew and alive:
                until = utc_now() + lease.length
                db.execute(update(LiveTurn).where(LiveTurn.turn_id.in_(alive)).values(lease_until=until))
            return alive

    def stop_requests(self, worker: str) -> Mapping[str, bool]:
        mine = select(LiveTurn.turn_id, LiveTurn.stop_asked).where(LiveTurn.worker == worker)
        with self._db.reading() as db:
            return dict(db.execute(mine).all())

    def still_running(self, turn_ids: Collection[str]) -> set[str]:
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.turn_id).where(LiveTurn.turn_id.in_(turn_ids))))

    def events_after(self, known: Sequence[tuple[Scope, str, int]]) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        with self._db.reading() as db:
            for at in range(0, len(known), MAX_TURNS_PER_QUERY):
                newer = or_(*(_newer(*turn) for turn in known[at : at + MAX_TURNS_PER_QUERY]))
                query = select(TurnEvents.turn_id, TurnEvents.events).where(newer)
                for turn_id, events in db.execute(query.order_by(TurnEvents.turn_id, TurnEvents.first)):
                    found.setdefault(turn_id, []).extend(from_json(kind, data) for kind, data in events)
        return found

    def ask_to_stop(self, scope: Scope, turn_id: str) -> bool:
        mine = (in_session(scope, LiveTurn), LiveTurn.turn_id == turn_id)
        with self._db.writing() as db:
            asked = db.execute(update(LiveTurn).where(*mine).values(stop_asked=True))
            return isinstance(asked, CursorResult) and asked.rowcount == 1

    def workers(self) -> set[str]:
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.worker).distinct()))

    def end_leases(self, workers: Collection[str]) -> None:
        past = utc_now() - timedelta(seconds=1)
        with self._db.writing() as db:
            db.execute(update(LiveTurn).where(LiveTurn.worker.in_(workers)).values(lease_until=past))

    def abandoned(self, lease: Lease) -> list[Scope]:
        now = utc_now()
        longest = now + lease.length + timedelta(seconds=CLOCK_SKEW_SECONDS)
        # A lease that ends later than any could was written by a clock that is wrong.
        ended = or_(LiveTurn.lease_until < now, LiveTurn.lease_until > longest)
        with self._db.reading() as db:
            rows = db.execute(select(LiveTurn.tenant_id, LiveTurn.user_id, LiveTurn.session_id).where(ended))
            found = [
                Scope(request_id=new_id(), tenant_id=tenant_id, user_id=user_id, session_id=session_id)
                for tenant_id, user_id, session_id in rows
            ]
        # The caller goes on under other scopes, and no thread may hold two connections at once.
        self._db.release()
        return found


def _newer(scope: Scope, turn_id: str, number: int) -> ColumnElement[bool]:
    return and_(in_session(scope, TurnEvents), TurnEvents.turn_id == turn_id, TurnEvents.first > number)


def _row(new: NewEvents) -> dict[str, object]:
    return {
        "turn_id": new.turn_id,
        "tenant_id": new.scope.tenant_id,
        "user_id": new.scope.user_id,
        "session_id": new.scope.session_id,
        "first": new.first,
        "events": [[event.kind, event.data] for event in new.events],
        "spent": new.spent.to_json(),
    }


def _spent(new: NewEvents) -> dict[str, object]:
    return {**owner_parameters(new.scope), "turn": new.turn_id, "spent_now": new.spent.to_json()}
