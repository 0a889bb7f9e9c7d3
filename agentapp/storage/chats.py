"""A user's chats: make, list, read, rename and search them.

Turns are written, and chats deleted, in ``storage.turns``.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from agentapp.errors import NotFound
from agentapp.isolation import Scope, UserScope, new_id
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat, lock_user
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import in_session, owned_by, this_session
from agentapp.storage.room import Room
from agentapp.storage.search import index_title, newest_matches
from agentapp.storage.turn_rows import stored_turn
from agentapp.storage.values import Chat, StoredMessage, Transcript, utc_now
from agentapp.storage.words import first_place
from agentapp.turns.values import UNTITLED

MAX_PASSAGE_CHARS = 160
MESSAGE_COLUMNS = (Message.seq, Message.turn_id, Message.role, Message.content, Message.created_at)


class Chats:
    def __init__(self, db: Database, room: Room | None = None) -> None:
        self._db, self._room = db, room or Room(db)
        self._dialect = db.engine.dialect.name

    def create(self, scope: UserScope) -> Chat:
        now = utc_now()
        row = ChatSession(
            id=new_id(),
            tenant_id=scope.tenant_id,
            user_id=scope.user_id,
            title=UNTITLED,
            created_at=now,
            updated_at=now,
        )
        with self._db.writing() as db:
            self._room.require(db.connection(), scope, lock_user(db.connection(), scope))
            db.add(row)
            db.flush()  # before its entry, which refers to it
            index_title(db.connection(), scope.within(row.id), row.title)
            return _chat(row)

    def page(
        self, scope: UserScope, *, words: str = "", page: int = 1, size: int = 30
    ) -> tuple[list[Chat], bool]:
        """One page of the user's chats, newest first, and whether there is another page after it.

        With ``words``, only those that have a message or a title with all of them.
        """
        query = select(ChatSession).where(owned_by(scope, ChatSession))
        if words:
            matches = newest_matches(self._dialect, scope, words)
            if matches is None:
                return [], False
            chats = select(matches.c.session_id).distinct().subquery()
            query = query.join(chats, chats.c.session_id == ChatSession.id)
        query = query.order_by(ChatSession.updated_at.desc(), ChatSession.id)
        with self._db.reading() as db:
            rows = db.scalars(query.offset((page - 1) * size).limit(size + 1)).all()
            return [_chat(row) for row in rows[:size]], len(rows) > size

    def get(self, scope: Scope) -> Chat:
        with self._db.reading() as db:
            row = db.scalar(select(ChatSession).where(this_session(scope)))
            if row is None:
                raise NotFound("There is no such chat.")
            return _chat(row)

    def transcript(self, scope: Scope) -> Transcript:
        chat = self.get(scope)
        mine, said = in_session(scope, Turn), in_session(scope, Message)
        with self._db.reading() as db:
            turns = db.scalars(select(Turn).where(mine).order_by(Turn.number)).all()
            whole = select(*MESSAGE_COLUMNS).where(said).order_by(Message.seq)
            messages = [StoredMessage(*row) for row in db.execute(whole)]
            stored = tuple(stored_turn(db, scope, turn) for turn in turns)
            return Transcript(chat, stored, tuple(messages))

    def rename(self, scope: Scope, title: str) -> None:
        with self._db.writing() as db:
            if (chat := lock_chat(db.connection(), scope)) is None:
                raise NotFound("There is no such chat.")
            self._room.require(db.connection(), scope, chat.stored_bytes)
            db.execute(update(ChatSession).where(this_session(scope)).values(title=title))
            index_title(db.connection(), scope, title)

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        """Passages with these words in the user's other chats, newest first. Each is title, day, passage."""
        matches = newest_matches(self._dialect, scope, words)
        if matches is None:
            return []
        hits = (
            select(ChatSession.title, Message.created_at, Message.content)
            .join(ChatSession, ChatSession.id == Message.session_id)
            .join(matches, matches.c.message_id == Message.id)
            .where(owned_by(scope, Message), owned_by(scope, ChatSession))
            .where(Message.session_id != scope.session_id)
            .order_by(matches.c.id.desc())
            .limit(limit)
        )
        with self._db.reading() as db:
            found = db.execute(hits).all()
        return [(title, f"{when:%Y-%m-%d}", _passage(content, words)) for title, when, content in found]


def _chat(row: ChatSession) -> Chat:
    return Chat(row.id, row.title, row.created_at, row.updated_at)


def _passage(content: str, words: str) -> str:
    start = max(first_place(content, words) - MAX_PASSAGE_CHARS // 2, 0)
    end = min(start + MAX_PASSAGE_CHARS, len(content))
    return ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")
