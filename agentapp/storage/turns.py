"""Turns in SQL: the transaction that changes one, statement by statement, and the record for its readers.

Which statements make up a turn's beginning and end, and in which order, is told in ``turns/turn.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BindParameter,
    CursorResult,
    Executable,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from agentapp.errors import NotFound
from agentapp.events import Event, Rendered, TurnResult, Usage, unpacked
from agentapp.guardrails.admission import Reservation
from agentapp.isolation import Scope, new_id
from agentapp.storage.cells import CellRows, CellStore
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat
from agentapp.storage.models import ChargedTurn, ChatSession, LiveTurn, Message, Turn, TurnEvents
from agentapp.storage.owned import OWNER, in_session, owned_by, owner_parameters, this_session
from agentapp.storage.room import Room
from agentapp.storage.search import index_message, index_title
from agentapp.storage.turn_rows import (
    columns_of,
    columns_of_rendered,
    columns_of_usage,
    events_so_far,
    rendered_of,
    result_of,
)
from agentapp.storage.values import utc_now
from agentapp.turns.values import Lease, NewMessage, Place, RunningTurn, Spent, TurnRecord

MAX_HISTORY_TURNS = 100
CHARGES_KEPT = timedelta(days=1)  # a worker that was taken for dead for so long charges no more


def _messages_up_to(last: BindParameter[int]) -> Select[str, str]:
    """The messages of turn number ``last`` and of the turns it follows. Other versions are left out.

    The query starts at that turn and steps back from each turn to the one it follows. With an inner join,
    SQLite would read all messages of the chat and look for their turns on the way.
    """
    turns = select(Turn.id, Turn.number, Turn.follows).where(in_session(OWNER, Turn))
    start = turns.add_columns(literal(1).label("steps")).where(Turn.number == last)
    path = start.cte("path", recursive=True)
    step = turns.add_columns(path.c.steps + 1)
    step = step.where(Turn.number == path.c.follows, path.c.steps < MAX_HISTORY_TURNS)
    path = path.union_all(step)
    of_turn = and_(Message.turn_id == path.c.id, in_session(OWNER, Message))
    messages = select(Message.role, Message.content).select_from(path).outerjoin(Message, of_turn)
    return messages.order_by(Message.seq)


# Built once, because every turn runs nearly all of them and building took three times as long as running.
RUNNING_TURN = (
    select(Turn.id, LiveTurn.worker, LiveTurn.lease_until, Turn.admission)
    .outerjoin(LiveTurn, LiveTurn.turn_id == Turn.id)
    .where(in_session(OWNER, Turn), Turn.status == "running")
)
USER_MESSAGE = select(Message.content, Message.turn_id).where(
    in_session(OWNER, Message), Message.role == "user"
)
MESSAGE_OF_TURN = USER_MESSAGE.where(Message.turn_id == bindparam("turn"))
MESSAGE_WITH_KEY = USER_MESSAGE.join(Turn, Turn.id == Message.turn_id).where(
    in_session(OWNER, Turn), Turn.idempotency_key == bindparam("key")
)
PLACE = select(Turn.number, Turn.follows, Turn.next_agent).where(in_session(OWNER, Turn))
NEWEST_TURN = PLACE.order_by(Turn.number.desc()).limit(1)
TURN_WITH_ID = PLACE.where(Turn.id == bindparam("turn"))
TURN_WITH_NUMBER = PLACE.where(Turn.number == bindparam("at"))
MESSAGES_BEFORE = _messages_up_to(bindparam("at"))
LAST_SEQ = select(func.coalesce(func.max(Message.seq), 0)).where(in_session(OWNER, Message))
ADD_MESSAGE = insert(Message).values(seq=LAST_SEQ.scalar_subquery() + 1)
ADD_TURN, ADD_LIVE_TURN = insert(Turn), insert(LiveTurn)
UPDATE_CHAT = update(ChatSession).where(this_session(OWNER))
END_TURN = update(Turn).where(in_session(OWNER, Turn), Turn.id == bindparam("turn"), Turn.status == "running")
_newer = aliased(Turn)
COMPLETE_INTERRUPTED = update(Turn).where(
    in_session(OWNER, Turn),
    Turn.id == bindparam("turn"),
    Turn.status == "interrupted",
    Turn.number == select(func.max(_newer.number)).where(in_session(OWNER, _newer)).scalar_subquery(),
)
REMOVE_REPLY = delete(Message).where(
    in_session(OWNER, Message), Message.turn_id == bindparam("turn"), Message.role == "assistant"
)
ENDED_TURN = select(Turn.status, Turn.input_tokens, Turn.output_tokens, Turn.model_calls).where(
    in_session(OWNER, Turn), Turn.id == bindparam("turn"), Turn.status != "running"
)
CORRECT_USAGE = update(Turn).where(in_session(OWNER, Turn), Turn.id == bindparam("turn"))
LAST_SPENT = (
    select(TurnEvents.spent)
    .where(in_session(OWNER, TurnEvents), TurnEvents.turn_id == bindparam("turn"))
    .order_by(TurnEvents.first.desc())
    .limit(1)
)
LEAVE_CHARGE = insert(ChargedTurn)
TAKE_CHARGE = (
    delete(ChargedTurn)
    .where(in_session(OWNER, ChargedTurn), ChargedTurn.turn_id == bindparam("turn"))
    .returning(ChargedTurn.spent)
)
# The user's own, whose row is locked: so nobody waits for somebody else here.
DELETE_OLD_CHARGES = delete(ChargedTurn).where(
    owned_by(OWNER, ChargedTurn), ChargedTurn.charged_at < bindparam("before")
)
REMOVE_LIVE_TURN = delete(LiveTurn).where(in_session(OWNER, LiveTurn), LiveTurn.turn_id == bindparam("turn"))
DELETE_CHAT = delete(ChatSession).where(this_session(OWNER))


class SqlChatTransaction:
    """Made inside an open write transaction; its first statement locks the chat's row and its user's."""

    def __init__(self, db: Session, scope: Scope, cells: CellRows, room: Room) -> None:
        self._db, self._scope = db, scope
        self.cells = cells
        self._room, self._locked = room, lock_chat(db.connection(), scope)
        self.title = None if self._locked is None else self._locked.title
        # Read after the lock, so that nothing that others did while this one waited is later than it.
        self.now = utc_now()

    def require_room(self) -> None:
        if self._locked is not None:
            self._room.require(self._db.connection(), self._scope, self._locked.stored_bytes)

    def running_turn(self) -> RunningTurn | None:
        row = self._run(RUNNING_TURN).first()
        if row is None:
            return None
        reserved = None if row.admission is None else Reservation.from_json(row.admission)
        until: datetime | None = row.lease_until
        return RunningTurn(row.id, row.worker or "", until, reserved)

    def message_of(self, turn_id: str) -> str | None:
        text: str | None = self._run(MESSAGE_OF_TURN, turn=turn_id).scalar()
        return text

    def turn_with_key(self, key: str) -> tuple[str, str] | None:
        found = self._run(MESSAGE_WITH_KEY, key=key).first()
        return None if found is None else (found.turn_id, found.content)

    def place_of(self, message: NewMessage) -> Place:
        before = self._run(NEWEST_TURN).first()
        number = 1 if before is None else before.number + 1
        if (turn_id := message.replaces or message.after) is not None:
            before = self._run(TURN_WITH_ID, turn=turn_id).first()
            if before is None:
                raise NotFound("There is no such turn.")
        if message.replaces is not None and before is not None:
            before = self._run(TURN_WITH_NUMBER, at=before.follows).first()
        return Place(number, before.number, before.next_agent) if before is not None else Place(number, 0, "")

    def history(self, last: int) -> tuple[tuple[str, str], ...]:
        return tuple((said.role, said.content) for said in self._run(MESSAGES_BEFORE, at=last))

    def add_turn(self, place: Place, key: str | None, reservation: Reservation, lease: Lease) -> str:
        turn_id = new_id()
        self._run(
            ADD_TURN,
            **self._owner_columns(),
            id=turn_id,
            request_id=self._scope.request_id,
            number=place.number,
            follows=place.follows,
            idempotency_key=key,
            status="running",
            agent=place.agent,
            next_agent="",
            log=[],
            input_tokens=0,
            output_tokens=0,
            model_calls=0,
            started_at=self.now,
            admission=reservation.to_json(),
        )
        self._run(
            ADD_LIVE_TURN,
            **self._owner_columns(),
            turn_id=turn_id,
            worker=lease.worker,
            lease_until=self.now + lease.length,
            stop_asked=False,
        )
        return turn_id

    def add_message(self, turn_id: str, role: str, content: str, rendered: Rendered | None = None) -> None:
        message_id = new_id()
        values = {"id": message_id, "turn_id": turn_id, "role": role, "content": content}
        kept = columns_of_rendered(rendered)
        self._run(ADD_MESSAGE, **self._owner_columns(), **values, **kept, created_at=self.now)
        index_message(self._db.connection(), self._scope, message_id, content)

    def touch(self, title: str | None = None) -> None:
        values = {} if title is None else {"title": title}
        self._run(UPDATE_CHAT, updated_at=self.now, **values)
        if title is not None and title != self.title:
            index_title(self._db.connection(), self._scope, title)

    def events_so_far(self, turn_id: str) -> Sequence[Event]:
        return events_so_far(self._db, self._scope, turn_id)

    def spent_so_far(self, turn_id: str) -> Spent | None:
        stored = self._run(LAST_SPENT, turn=turn_id).scalar()
        return None if stored is None else Spent.from_json(stored)

    def leave_charge(self, turn_id: str, charged: Spent) -> None:
        self._run(DELETE_OLD_CHARGES, before=self.now - CHARGES_KEPT)
        values = {"turn_id": turn_id, "spent": charged.to_json(), "charged_at": self.now}
        self._run(LEAVE_CHARGE, **self._owner_columns(), **values)

    def take_charge(self, turn_id: str) -> Spent | None:
        charged = self._run(TAKE_CHARGE, turn=turn_id).scalar()
        return None if charged is None else Spent.from_json(charged)

    def ended_turn(self, turn_id: str) -> tuple[str, Usage] | None:
        found = self._run(ENDED_TURN, turn=turn_id).first()
        return found and (found.status, Usage(found.input_tokens, found.output_tokens, found.model_calls))

    def correct_usage(self, turn_id: str, result: TurnResult) -> None:
        self._run(CORRECT_USAGE, turn=turn_id, **columns_of_usage(result))

    def end_turn(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        packed = [event.packed() for event in events]
        ended = self._run(END_TURN, turn=turn_id, ended_at=self.now, log=packed, **columns_of(result))
        return ended.rowcount == 1

    def complete_interrupted(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        packed = [event.packed() for event in events]
        values = {"ended_at": self.now, "log": packed, **columns_of(result)}
        if self._run(COMPLETE_INTERRUPTED, turn=turn_id, **values).rowcount != 1:
            return False
        self._run(REMOVE_REPLY, turn=turn_id)
        return True

    def remove_live_turn(self, turn_id: str) -> None:
        """Must be the last statement of its transaction, after those on the cells.

        The heartbeat locks such rows too, of many turns at once, and locks nothing after them. A transaction
        that held one of them while it waited for a cell could wait for ever.
        """
        self._run(REMOVE_LIVE_TURN, turn=turn_id)

    def delete_chat(self) -> None:
        self._run(DELETE_CHAT)

    def _run(self, statement: Executable, **values: object) -> CursorResult[Any]:
        return self._db.connection().execute(statement, {**owner_parameters(self._scope), **values})

    def _owner_columns(self) -> dict[str, str]:
        scope = self._scope
        return {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "session_id": scope.session_id}


class SqlTurnStore:
    """A `turns.stores.TurnStore`."""

    def __init__(self, db: Database, cells: CellStore, room: Room | None = None) -> None:
        self._db, self._cells, self._room = db, cells, room or Room(db)

    @contextmanager
    def chat(self, scope: Scope) -> Iterator[SqlChatTransaction]:
        with self._db.writing() as db:
            yield SqlChatTransaction(db, scope, self._cells.rows(db), self._room)

    def find(self, scope: Scope, turn_id: str) -> TurnRecord:
        messages = select(Message.role, Message.content, Message.html, Message.renderer).where(
            in_session(scope, Message), Message.turn_id == turn_id
        )
        mine = select(Turn).where(in_session(scope, Turn), Turn.id == turn_id)
        with self._db.reading() as db:
            title = db.scalar(select(ChatSession.title).where(this_session(scope)))
            turn = db.scalar(mine.execution_options(populate_existing=True))
            if title is None or turn is None:
                raise NotFound("There is no such turn.")
            said = {message.role: message for message in db.execute(messages)}
            message, reply = (said[role].content if role in said else "" for role in ("user", "assistant"))
            rendered = rendered_of(said["assistant"]) if reply else None
            events = tuple(unpacked(turn.log, message, reply))
            result = result_of(turn, reply=reply, title=title, rendered=rendered)
            record = TurnRecord(turn.id, turn.request_id, events, result)
        self._db.release()  # The caller may wait long for events, and must not hold a connection meanwhile.
        return record
