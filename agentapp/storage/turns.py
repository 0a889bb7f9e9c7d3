"""Turns in SQL: the transaction that changes a turn, and the record that its readers are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select

from agentapp.errors import NotFound
from agentapp.events import unpacked
from agentapp.isolation import Scope
from agentapp.storage.cells import CellStore
from agentapp.storage.chat_transaction import SqlChatTransaction
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import in_session, this_session
from agentapp.storage.turn_rows import result_of
from agentapp.turns.values import TurnRecord


class SqlTurnStore:
    """A `turns.stores.TurnStore`."""

    def __init__(self, db: Database, cells: CellStore) -> None:
        self._db, self._cells = db, cells

    @contextmanager
    def chat(self, scope: Scope) -> Iterator[SqlChatTransaction]:
        with self._db.writing() as db:
            yield SqlChatTransaction(db, scope, self._cells.rows(db))

    def find(self, scope: Scope, turn_id: str) -> TurnRecord:
        messages = select(Message.role, Message.content).where(
            in_session(scope, Message), Message.turn_id == turn_id
        )
        mine = select(Turn).where(in_session(scope, Turn), Turn.id == turn_id)
        with self._db.reading() as db:
            title = db.scalar(select(ChatSession.title).where(this_session(scope)))
            turn = db.scalar(mine.execution_options(populate_existing=True))
            if title is None or turn is None:
                raise NotFound("There is no such turn.")
            text_by_role = dict(db.execute(messages).all())
            message, reply = text_by_role.get("user", ""), text_by_role.get("assistant", "")
            events = tuple(unpacked(turn.log, message, reply))
            record = TurnRecord(turn.id, turn.request_id, events, result_of(turn, reply=reply, title=title))
        self._db.release()  # The caller may wait long for events, and must not hold a connection meanwhile.
        return record
