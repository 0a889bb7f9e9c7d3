"""A turn as its owner may follow it: what is known of it, its events, and the wish that it stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sqlalchemy import ColumnElement, CursorResult, and_, or_, select, update
from sqlalchemy.orm import Session

from agentapp.errors import NotFound
from agentapp.isolation import Scope
from agentapp.storage.db import Database
from agentapp.storage.log import Event
from agentapp.storage.models import ChatSession, LiveTurn, Message, Turn, TurnEvents
from agentapp.storage.owned import in_session, this_session
from agentapp.storage.values import Status, StoredTurn, Told

AT_ONCE = 100  # a statement may be only so deep


class Tellings:
    def __init__(self, db: Database) -> None:
        self._db = db

    def look(self, scope: Scope, turn_id: str) -> Told:
        """The turn, if it is the scope's own."""
        said = select(Message.role, Message.content).where(
            in_session(scope, Message), Message.turn_id == turn_id
        )
        mine = select(Turn).where(in_session(scope, Turn), Turn.id == turn_id)
        with self._db.reading() as db:
            title = db.scalar(select(ChatSession.title).where(this_session(scope)))
            turn = db.scalar(mine.execution_options(populate_existing=True))
            if title is None or turn is None:
                raise NotFound("There is no such turn.")
            words = dict(db.execute(said).all())
            told = Told(stored_turn(turn), title, words.get("user", ""), words.get("assistant", ""))
        self._db.release()  # whoever follows may wait for long, and must hold no connection
        return told

    def events_after(self, known: Sequence[tuple[Scope, str, int]]) -> dict[str, list[Event]]:
        """What was written down of these turns beyond the number that is known of each, by the turn's id."""
        found: dict[str, list[Event]] = {}
        with self._db.reading() as db:
            for at in range(0, len(known), AT_ONCE):
                newer = or_(*(_newer(*one) for one in known[at : at + AT_ONCE]))
                query = select(TurnEvents.turn_id, TurnEvents.events).where(newer)
                for turn_id, events in db.execute(query.order_by(TurnEvents.turn_id, TurnEvents.first)):
                    found.setdefault(turn_id, []).extend((kind, data) for kind, data in events)
        return found

    def ask_to_stop(self, scope: Scope, turn_id: str) -> bool:
        """Leave word for the worker that plays it. False if it is running no more."""
        mine = (in_session(scope, LiveTurn), LiveTurn.turn_id == turn_id)
        with self._db.writing() as db:
            asked = db.execute(update(LiveTurn).where(*mine).values(stop_asked=True))
            return isinstance(asked, CursorResult) and asked.rowcount == 1


def stored_turn(row: Turn) -> StoredTurn:
    return StoredTurn(
        id=row.id,
        number=row.number,
        follows=row.follows,
        status=cast(Status, row.status),
        agent=row.agent,
        log=tuple(row.log),
        error_code=row.error_code,
        error_message=row.error_message,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        model_calls=row.model_calls,
        cost_usd=None if row.cost_microusd is None else row.cost_microusd / 1_000_000,
        request_id=row.request_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def events_so_far(db: Session, scope: Scope, turn_id: str) -> list[Event]:
    """Everything that was written down of a running turn."""
    query = select(TurnEvents.events).where(in_session(scope, TurnEvents), TurnEvents.turn_id == turn_id)
    rows = db.scalars(query.order_by(TurnEvents.first))
    return [(kind, data) for events in rows for kind, data in events]


def _newer(scope: Scope, turn_id: str, number: int) -> ColumnElement[bool]:
    return and_(in_session(scope, TurnEvents), TurnEvents.turn_id == turn_id, TurnEvents.first > number)
