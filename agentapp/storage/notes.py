"""The notes that a user asked to keep. Each belongs to one chat session."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import CursorResult, delete, func, select

from agentapp.errors import NotFound
from agentapp.isolation import Scope, new_id
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat
from agentapp.storage.models import Note
from agentapp.storage.owned import in_session
from agentapp.storage.room import Room
from agentapp.storage.values import utc_now


class Notes:
    def __init__(self, db: Database, room: Room | None = None) -> None:
        self._db, self._room = db, room or Room(db)

    def add(self, scope: Scope, text: str) -> int:
        """Store a note and return its number. Two notes that are added at once get different numbers.

        Raises `StorageFull` if the user keeps too much already.
        """
        with self._db.writing() as db:
            # The lock on the session's row makes the count below safe on PostgreSQL too.
            if (chat := lock_chat(db.connection(), scope)) is None:
                raise NotFound("There is no such chat.")
            self._room.require(db.connection(), scope, chat.stored_bytes)
            number = (db.scalar(select(func.max(Note.number)).where(in_session(scope, Note))) or 0) + 1
            db.add(
                Note(
                    id=new_id(),
                    tenant_id=scope.tenant_id,
                    user_id=scope.user_id,
                    session_id=scope.session_id,
                    number=number,
                    text=text,
                    created_at=utc_now(),
                )
            )
            return number

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        with self._db.reading() as db:
            rows = db.execute(
                select(Note.number, Note.text).where(in_session(scope, Note)).order_by(Note.number)
            )
            return [(number, text) for number, text in rows]

    def remove(self, scope: Scope, number: int) -> bool:
        with self._db.writing() as db:
            lock_chat(db.connection(), scope)
            gone = db.execute(delete(Note).where(in_session(scope, Note), Note.number == number))
            return isinstance(gone, CursorResult) and gone.rowcount == 1
