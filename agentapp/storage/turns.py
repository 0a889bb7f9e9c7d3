"""Turns in SQL: the transaction that changes one, statement by statement, and the record for its readers.

Which statements make up a turn's beginning and end, and in which order, is told in ``turns/turn.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import select

from agentapp.errors import ForeignHistory, NotFound
from agentapp.events import Event, Rendered, TurnResult, Usage, UsagePart, unpacked
from agentapp.guardrails.admission import Reservation
from agentapp.isolation import Scope, new_id
from agentapp.storage import turn_statements as statements
from agentapp.storage.audit_log import ADD_ENTRY as ADD_AUDIT_ENTRY
from agentapp.storage.audit_log import AuditEntry
from agentapp.storage.cells import CellRows, CellStore
from agentapp.storage.db import Database
from agentapp.storage.locks import LOCK_CHAT
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import in_session, owner_parameters, this_session
from agentapp.storage.room import Room
from agentapp.storage.search import ADD_ENTRY, index_message, index_title
from agentapp.storage.statements import DriverConnection, Result, Statement
from agentapp.storage.turn_rows import (
    EVENTS_SO_FAR,
    columns_of,
    columns_of_rendered,
    columns_of_usage,
    events_in,
    rendered_of,
    result_of,
)
from agentapp.storage.usage_days import ADD_USAGE, day_of, usage_columns, usage_rows
from agentapp.turns.values import Lease, NewMessage, Place, RunningTurn, Spent, TurnRecord

CHARGES_KEPT = timedelta(days=1)  # a worker that was taken for dead for so long charges no more


class _ChatRow(NamedTuple):
    """What `statements.READ_CHAT` gives."""

    title: str
    stored_bytes: int
    running: str | None
    with_key: str | None
    newest: int | None
    next_agent: str | None


class SqlChatTransaction:
    """Made inside an open write transaction; its first statement locks the chat's row and its user's.

    ``key`` is the idempotency key of the message that it is for, if it is for one.
    """

    def __init__(
        self, db: DriverConnection, scope: Scope, cells: CellRows, room: Room, key: str | None = None
    ) -> None:
        self._db, self._scope, self._own = db, scope, owner_parameters(scope)
        self.cells, self._room, self._key = cells, room, key
        self._now: datetime | None = None
        self._chat: _ChatRow | None = None
        self._has_read = False
        self.tell_when_over: Callable[[bool], object] | None = None
        if db.dialect != "sqlite":  # there, the whole transaction is one lock
            self._run(LOCK_CHAT)

    @property
    def title(self) -> str | None:
        chat = self._read_chat()
        return None if chat is None else chat.title

    @property
    def now(self) -> datetime:
        """Read after the lock, so that nothing that others did while this one waited is later than it, but by
        what the clocks of two hosts may differ: see `DatabaseClock`.
        """
        if self._now is None:
            self._now = self._db.clock.utc_now()
        return self._now

    def _read_chat(self) -> _ChatRow | None:
        if not self._has_read:
            asked = self._run(statements.READ_CHAT, key=self._key)
            self._history_of_newest = self._run(statements.HISTORY_OF_NEWEST[self._db.dialect])
            found = asked.first()
            self._chat, self._has_read = _ChatRow(*found) if found else None, True
        return self._chat

    def require_room(self) -> None:
        if (chat := self._read_chat()) is not None:
            self._room.require(self._db, self._scope, chat.stored_bytes)

    def running_turn(self) -> RunningTurn | None:
        chat = self._read_chat()
        if chat is None or chat.running is None:
            return None
        row = self._run(statements.RUNNING_TURN).first()
        if row is None:
            return None
        turn_id, worker, lease_until, admission, request_id = row
        reserved = None if admission is None else Reservation.from_json(admission)
        return RunningTurn(turn_id, worker or "", lease_until, reserved, request_id)

    def other_running_turns(self) -> int:
        count: int = self._run(statements.OTHER_RUNNING_TURNS).scalar()
        return count

    def message_of(self, turn_id: str) -> str | None:
        text: str | None = self._run(statements.MESSAGE_OF_TURN, turn=turn_id).scalar()
        return text

    def turn_with_key(self) -> str | None:
        chat = self._read_chat()
        return chat.with_key if chat is not None else None

    def place_of(self, message: NewMessage) -> Place:
        chat = self._read_chat()
        newest = chat.newest if chat is not None and chat.newest is not None else 0
        place = Place(newest + 1, newest, (chat and chat.next_agent) or "")
        if (turn_id := message.replaces or message.after) is None:
            return place
        found = self._run(statements.TURN_WITH_ID, turn=turn_id).first()
        if found is None:
            raise NotFound("There is no such turn.")
        number, follows, next_agent = found
        if message.replaces is None:
            return Place(place.number, number, next_agent)
        before = self._run(statements.TURN_WITH_NUMBER, at=follows).first()
        return Place(place.number, 0, "") if before is None else Place(place.number, before[0], before[2])

    def history(self, last: int) -> tuple[tuple[str, str], ...]:
        chat, found = self._read_chat(), self._history_of_newest
        if chat is None or last != chat.newest:
            found = self._run(statements.HISTORY[self._db.dialect], at=last)
        messages, *owners = found.first() or ([],)
        self._require_own(owners)
        if isinstance(messages, str):
            messages = json.loads(messages)
        said = sorted([each for each in messages or [] if each[0] is not None])  # by the number of each
        return tuple([(role, content) for _, role, content in said])

    def _require_own(self, owners: Sequence[str | None]) -> None:
        """They are read from the rows, so a statement that finds too much is noticed."""
        own = self._scope.tenant_id, self._scope.user_id, self._scope.session_id
        if owners and owners[0] is not None and (tuple(owners[::2]), tuple(owners[1::2])) != (own, own):
            raise ForeignHistory(self._scope, "messages of other chats")

    def add_turn(self, place: Place, key: str | None, reservation: Reservation, lease: Lease) -> str:
        turn_id = new_id()
        self._run_later(
            statements.ADD_TURN,
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
            error_code=None,
            error_message=None,
            can_retry=None,
            input_tokens=0,
            output_tokens=0,
            model_calls=0,
            cache_read_tokens=0,
            cache_write_tokens=0,
            cost_microusd=None,
            started_at=self.now,
            ended_at=None,
            admission=reservation.to_json(),
        )
        self._run_later(
            statements.ADD_LIVE_TURN,
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
        self._run_later(
            statements.ADD_MESSAGE, **self._owner_columns(), **values, **kept, created_at=self.now
        )
        index_message(self._db, self._scope, message_id, content)

    def touch(self, title: str | None = None) -> None:
        if title is None or title == self.title:
            self._run_later(statements.TOUCH_CHAT, updated_at=self.now)
        else:
            self._run_later(statements.NAME_CHAT, updated_at=self.now, title=title)
            index_title(self._db, self._scope, title)

    def events_so_far(self, turn_id: str) -> Sequence[Event]:
        return events_in(self._run(EVENTS_SO_FAR, turn=turn_id).all())

    def spent_so_far(self, turn_id: str) -> Spent | None:
        stored = self._run(statements.LAST_SPENT, turn=turn_id).scalar()
        return None if stored is None else Spent.from_json(stored)

    def leave_charge(self, turn_id: str, charged: Spent) -> None:
        self._run(statements.DELETE_OLD_CHARGES, before=self.now - CHARGES_KEPT)
        values = {"turn_id": turn_id, "spent": charged.to_json(), "charged_at": self.now}
        self._run(statements.LEAVE_CHARGE, **self._owner_columns(), **values)

    def take_charge(self, turn_id: str) -> Spent | None:
        charged = self._run(statements.TAKE_CHARGE, turn=turn_id).scalar()
        return None if charged is None else Spent.from_json(charged)

    def ended_turn(self, turn_id: str) -> tuple[str, Usage] | None:
        found = self._run(statements.ENDED_TURN, turn=turn_id).first()
        return found and (found[0], Usage(*found[1:]))

    def correct_usage(self, turn_id: str, result: TurnResult) -> None:
        self._run(statements.CORRECT_USAGE, turn=turn_id, **columns_of_usage(result))

    def add_usage(self, reservation: Reservation, result: TurnResult) -> None:
        self._add_usage(reservation, usage_rows(result))

    def correct_usage_day(self, reservation: Reservation, parts: Sequence[UsagePart]) -> None:
        self._add_usage(reservation, [(0, part) for part in parts])

    def _add_usage(self, reservation: Reservation, rows: Sequence[tuple[int, UsagePart]]) -> None:
        """In the same order in every transaction. Only those of one user can meet, and that row is locked."""
        owner = {"tenant_id": self._scope.tenant_id, "user_id": self._scope.user_id}
        day = day_of(reservation.begun, self.now)
        for turns, part in rows:
            values = usage_columns(turns, part)
            self._db.run_later(ADD_USAGE[self._db.dialect], {**owner, "day": day, **values})

    def end_turn(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        packed = [event.packed() for event in events]
        ended = self._run(
            statements.END_TURN, turn=turn_id, ended_at=self.now, log=packed, **columns_of(result)
        )
        return ended.first() is not None

    def complete_interrupted(self, turn_id: str, result: TurnResult, events: Sequence[Event]) -> bool:
        packed = [event.packed() for event in events]
        values = {"ended_at": self.now, "log": packed, **columns_of(result)}
        if self._run(statements.COMPLETE_INTERRUPTED, turn=turn_id, **values).first() is None:
            return False
        self._run(statements.REMOVE_REPLY, turn=turn_id)
        return True

    def remove_live_turn(self, turn_id: str) -> None:
        """Must be the last statement of its transaction, after those on the cells.

        The heartbeat locks such rows too, of many turns at once, and locks nothing after them. A transaction
        that held one of them while it waited for a cell could wait for ever.
        """
        self._run_later(statements.REMOVE_LIVE_TURN, turn=turn_id)

    def delete_chat(self) -> None:
        self._run(statements.DELETE_CHAT)
        entry = AuditEntry.of(self._scope, "chat-deleted", f"session:{self._scope.session_id}")
        self._run_later(ADD_AUDIT_ENTRY, **entry.values(self.now))

    def when_over(self, tell: Callable[[bool], object]) -> None:
        self.tell_when_over = tell

    def _run(self, statement: Statement, **values: object) -> Result:
        return self._db.run(statement, {**self._own, **values})

    def _run_later(self, statement: Statement, **values: object) -> None:
        self._db.run_later(statement, {**self._own, **values})

    def _owner_columns(self) -> dict[str, str]:
        scope = self._scope
        return {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "session_id": scope.session_id}


class SqlTurnStore:
    """A `turns.stores.TurnStore`."""

    def __init__(self, db: Database, cells: CellStore, room: Room | None = None) -> None:
        self._db, self._cells, self._room = db, cells, room or Room(db)
        dialect = db.engine.dialect.name
        db.compile(
            (
                *statements.OF_EVERY_TURN,
                ADD_ENTRY[dialect],
                statements.HISTORY_OF_NEWEST[dialect],
                ADD_USAGE[dialect],
            )
        )

    @contextmanager
    def chat(self, scope: Scope, key: str | None = None) -> Iterator[SqlChatTransaction]:
        chat, is_stored = None, False
        try:
            with self._cells.kept_hot(scope, key) as seen, self._db.transaction(scope.tenant_id) as db:
                chat = SqlChatTransaction(db, scope, self._cells.rows(db, seen), self._room, key)
                yield chat
            is_stored = True
        finally:
            if chat is not None and chat.tell_when_over is not None:
                chat.tell_when_over(is_stored)

    def has_ended(self, scope: Scope, turn_id: str, status: str, ended_at: datetime) -> bool:
        same = (in_session(scope, Turn), Turn.id == turn_id, Turn.status == status, Turn.ended_at == ended_at)
        with self._db.reading() as db:
            return db.scalar(select(Turn.id).where(*same)) is not None

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
