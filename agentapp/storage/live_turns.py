"""The running turns of all workers and users: their leases, their events so far, requests to stop them.

The table `turn_events` holds the events of running turns. A foreign key removes them when the turn ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Integer,
    Select,
    String,
    Update,
    and_,
    bindparam,
    cast,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import aliased

from agentapp.events import Event, from_json
from agentapp.isolation import Scope, new_id
from agentapp.storage.db import Database
from agentapp.storage.models import LiveTurn, TurnEvents
from agentapp.storage.owned import in_session
from agentapp.storage.statements import Statement
from agentapp.turns.values import Lease, NewEvents

MAX_TURNS_PER_QUERY = 100  # each adds an OR, and SQLite limits how deep an expression may be
COLUMNS = ("turn_id", "tenant_id", "user_id", "session_id", "first", "events", "spent")

# One statement for all turns, however many: what it is about is a list in JSON, a single parameter. With one
# step of the driver for each turn, a thread would ask for the interpreter's lock as often, and under load it
# would wait each time.
_LIST = bindparam("list", type_=String)
_OF_SQLITE = func.json_each(_LIST).table_valued("value")
_OF_POSTGRESQL = func.json_array_elements(cast(_LIST, postgresql.JSON)).table_valued("value")


def _add_events_on_sqlite() -> Insert:
    columns = [func.json_extract(_OF_SQLITE.c.value, f"$[{at}]") for at in range(len(COLUMNS))]
    # Without a condition SQLite would take the ON of ON CONFLICT for that of a join.
    rows = select(*columns).where(_OF_SQLITE.c.value.is_not(None))
    adding = sqlite.insert(TurnEvents).from_select(COLUMNS, rows)
    new = {"events": adding.excluded.events, "spent": adding.excluded.spent}
    return adding.on_conflict_do_update(index_elements=["turn_id", "first"], set_=new)


def _add_events_on_postgresql() -> Insert:
    value = _OF_POSTGRESQL.c.value
    ids = [func.json_extract_path_text(value, str(at)) for at in range(4)]
    first = cast(func.json_extract_path_text(value, "4"), Integer)
    kept = [func.json_extract_path(value, str(at)) for at in (5, 6)]
    adding = postgresql.insert(TurnEvents).from_select(COLUMNS, select(*ids, first, *kept))
    new = {"events": adding.excluded.events, "spent": adding.excluded.spent}
    return adding.on_conflict_do_update(index_elements=["turn_id", "first"], set_=new)


def _renew(ids: Select[str]) -> Update:
    """A row that another transaction is just changing is not waited for: mostly that turn has ended."""
    found = aliased(LiveTurn)
    free = select(found.turn_id).where(found.turn_id.in_(ids), found.worker == bindparam("of_worker"))
    free = free.with_for_update(key_share=True, skip_locked=True)
    return update(LiveTurn).where(LiveTurn.turn_id.in_(free)).values(lease_until=bindparam("until"))


def _in_one_value(rows: Select[str, bool]) -> Mapping[str, Statement]:
    """All of them as one JSON text: SQLite's driver gives way to other threads at every row."""
    each = rows.subquery()
    pair = each.c.turn_id, each.c.stop_asked
    return MappingProxyType(
        {
            "sqlite": Statement(select(func.json_group_array(func.json_array(*pair)))),
            "postgresql": Statement(select(func.json_agg(func.json_build_array(*pair)))),
        }
    )


ADD_EVENTS = MappingProxyType(
    {"sqlite": Statement(_add_events_on_sqlite()), "postgresql": Statement(_add_events_on_postgresql())}
)
RENEW = MappingProxyType(
    {
        "sqlite": Statement(_renew(select(_OF_SQLITE.c.value))),
        "postgresql": Statement(_renew(select(func.json_array_elements_text(cast(_LIST, postgresql.JSON))))),
    }
)
_MINE = select(LiveTurn.turn_id, LiveTurn.stop_asked).where(LiveTurn.worker == bindparam("of_worker"))
STOP_REQUESTS = _in_one_value(_MINE)
# A row that another transaction is just removing is not waited for: that turn has ended.
STOP_REQUESTS_TO_WRITE = _in_one_value(_MINE.with_for_update(read=True, key_share=True, skip_locked=True))
CHATS = select(LiveTurn.tenant_id, LiveTurn.user_id, LiveTurn.session_id)


class SqlLiveTurnStore:
    """A `turns.stores.LiveTurnStore`."""

    def __init__(self, db: Database) -> None:
        self._db, dialect = db, db.engine.dialect.name
        self._add_events, self._renew = ADD_EVENTS[dialect], RENEW[dialect]
        self._stop_requests, self._to_write = STOP_REQUESTS[dialect], STOP_REQUESTS_TO_WRITE[dialect]
        db.compile((self._add_events, self._renew, self._stop_requests, self._to_write))

    def write(self, new: Sequence[NewEvents], worker: str) -> Mapping[str, bool]:
        with self._db.transaction() as db:
            alive = _pairs(db.run(self._to_write, {"of_worker": worker}).scalar())
            if rows := [_row(each) for each in new if each.turn_id in alive]:
                db.run(self._add_events, {"list": json.dumps(rows)})
            return alive

    def renew(self, turn_ids: Collection[str], lease: Lease) -> None:
        values = {"list": json.dumps(list(turn_ids)), "of_worker": lease.worker}
        with self._db.transaction(urgent=True) as db:
            db.run(self._renew, {**values, "until": db.clock.utc_now() + lease.length})

    def stop_requests(self, worker: str) -> Mapping[str, bool]:
        ((found,),) = self._db.look(self._stop_requests, {"of_worker": worker})
        return _pairs(found)

    def still_running(self, turn_ids: Collection[str]) -> set[str]:
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.turn_id).where(LiveTurn.turn_id.in_(turn_ids))))

    def events_after(
        self, known: Sequence[tuple[Scope, str, int]], refuse: Callable[[Scope, str], object]
    ) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        scopes = {turn_id: scope for scope, turn_id, _ in known}
        owner = (TurnEvents.tenant_id, TurnEvents.user_id, TurnEvents.session_id)
        with self._db.reading() as db:
            for at in range(0, len(known), MAX_TURNS_PER_QUERY):
                newer = or_(*(_newer(*turn) for turn in known[at : at + MAX_TURNS_PER_QUERY]))
                query = select(TurnEvents.turn_id, TurnEvents.events, *owner).where(newer)
                for turn_id, events, *ids in db.execute(query.order_by(TurnEvents.turn_id, TurnEvents.first)):
                    scope = scopes.get(turn_id)
                    if scope is None or [scope.tenant_id, scope.user_id, scope.session_id] != ids:
                        refuse(scope or known[0][0], turn_id)
                        continue
                    found.setdefault(turn_id, []).extend(from_json(kind, data) for kind, data in events)
        return found

    def worker_of(self, scope: Scope, turn_id: str) -> str | None:
        mine = (in_session(scope, LiveTurn), LiveTurn.turn_id == turn_id)
        with self._db.reading() as db:
            return db.scalar(select(LiveTurn.worker).where(*mine))

    def ask_to_stop(self, scope: Scope, turn_id: str) -> str | None:
        mine = (in_session(scope, LiveTurn), LiveTurn.turn_id == turn_id)
        with self._db.writing() as db:
            asking = update(LiveTurn).where(*mine).values(stop_asked=True)
            return db.scalar(asking.returning(LiveTurn.worker))

    def workers(self) -> set[str]:
        with self._db.reading() as db:
            return set(db.scalars(select(LiveTurn.worker).distinct()))

    def give_up(self, turn_ids: Collection[str], worker: str) -> None:
        mine = LiveTurn.turn_id.in_(turn_ids), LiveTurn.worker == worker
        past = self._db.clock.utc_now() - timedelta(seconds=1)
        with self._db.writing() as db:
            db.execute(update(LiveTurn).where(*mine).values(worker="", lease_until=past))

    def of_workers(self, workers: Collection[str]) -> list[Scope]:
        return self._chats(CHATS.where(LiveTurn.worker.in_(workers)))

    def with_lapsed_lease(
        self, living: Collection[str], latest_end: Callable[[datetime], datetime]
    ) -> list[Scope]:
        now = self._db.clock.utc_now()
        lapsed = or_(LiveTurn.lease_until < now, LiveTurn.lease_until > latest_end(now))
        return self._chats(CHATS.where(LiveTurn.worker.not_in(living), lapsed))

    def unsettled(self, before: datetime) -> tuple[int, datetime | None]:
        """How many turns nobody has renewed or ended although their lease ended before then, and when the
        first of these leases did.
        """
        query = select(func.count(), func.min(LiveTurn.lease_until)).where(LiveTurn.lease_until < before)
        with self._db.reading() as db:
            count, first = db.execute(query).one()
            return count, first

    def _chats(self, query: Select[str, str, str]) -> list[Scope]:
        with self._db.reading() as db:
            found = [
                Scope(request_id=new_id(), tenant_id=tenant_id, user_id=user_id, session_id=session_id)
                for tenant_id, user_id, session_id in db.execute(query)
            ]
        # The caller goes on under other scopes, and no thread may hold two connections at once.
        self._db.release()
        return found


def _pairs(found: Any) -> dict[str, bool]:
    """On SQLite the value is text, on PostgreSQL what was in it; nothing if there are no rows."""
    pairs = json.loads(found) if isinstance(found, str) else found or ()
    return {turn_id: bool(asked) for turn_id, asked in pairs}


def _newer(scope: Scope, turn_id: str, number: int) -> ColumnElement[bool]:
    return and_(in_session(scope, TurnEvents), TurnEvents.turn_id == turn_id, TurnEvents.first > number)


def _row(new: NewEvents) -> list[object]:
    """In the order of `COLUMNS`. If it has only spent more, the row is an empty one, with what was spent; the
    events that come next take its place.
    """
    scope, events = new.scope, [[event.kind, event.data] for event in new.events]
    owner = scope.tenant_id, scope.user_id, scope.session_id
    return [new.turn_id, *owner, new.first, events, new.spent.to_json()]
