"""The notes that a user asked to keep. Each belongs to one chat session."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, func, insert, select

from agentapp.errors import NotFound, StorageFull
from agentapp.isolation import Scope, new_id
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat
from agentapp.storage.models import Note
from agentapp.storage.owned import OWNER, in_session, owner_parameters
from agentapp.storage.room import Room
from agentapp.storage.statements import Statement
from agentapp.telemetry import NullTelemetry, Telemetry
from agentapp.telemetry.refusals import count_refusal

LAST_NUMBER = Statement(select(func.coalesce(func.max(Note.number), 0)).where(in_session(OWNER, Note)))
ADD_NOTE = Statement(insert(Note))
REMOVE_NOTE = Statement(
    delete(Note).where(in_session(OWNER, Note), Note.number == bindparam("at")).returning(Note.number)
)


class Notes:
    def __init__(self, db: Database, room: Room | None = None, telemetry: Telemetry | None = None) -> None:
        self._db, self._room = db, room or Room(db)
        self._telemetry = telemetry or NullTelemetry()

    def add(self, scope: Scope, text: str) -> int:
        """Store a note and return its number. Two notes that are added at once get different numbers.

        Raises `StorageFull` if the user keeps too much already.
        """
        try:
            return self._add(scope, text)
        except StorageFull as refusal:
            count_refusal(self._telemetry, refusal, scope.tenant_id)  # only the model is told of it
            raise

    def _add(self, scope: Scope, text: str) -> int:
        note = {"id": new_id(), "text": text, "created_at": self._db.clock.utc_now()}
        owner = {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "session_id": scope.session_id}
        with self._db.transaction() as db:
            # The lock on the session's row makes the count below safe on PostgreSQL too.
            if (chat := lock_chat(db, scope)) is None:
                raise NotFound("There is no such chat.")
            self._room.require(db, scope, chat.stored_bytes)
            number: int = db.run(LAST_NUMBER, owner_parameters(scope)).scalar() + 1
            db.run(ADD_NOTE, {**owner, **note, "number": number})
        return number

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        with self._db.reading() as db:
            rows = db.execute(
                select(Note.number, Note.text).where(in_session(scope, Note)).order_by(Note.number)
            )
            return [(number, text) for number, text in rows]

    def remove(self, scope: Scope, number: int) -> bool:
        with self._db.transaction() as db:
            lock_chat(db, scope)
            gone = db.run(REMOVE_NOTE, {**owner_parameters(scope), "at": number})
            return gone.first() is not None
