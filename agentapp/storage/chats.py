"""A user's chats: make, list, read, rename and search them.

Turns are written, and chats deleted, in ``storage.turns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from agentapp.errors import BadRequest, NotFound
from agentapp.isolation import Scope, UserScope, new_id
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat, lock_user
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import OWNER, in_session, owned_by, owner_parameters, this_session
from agentapp.storage.room import Room
from agentapp.storage.search import index_title, newest_matches
from agentapp.storage.statements import Statement
from agentapp.storage.turn_rows import stored_turn
from agentapp.storage.values import Chat, StoredMessage, Transcript
from agentapp.storage.words import first_place
from agentapp.turns.values import UNTITLED

MAX_PASSAGE_CHARS = 160
MOST_PINNED = 20  # they stand above the list on every page of a chat
CHAT_COLUMNS = (
    ChatSession.id,
    ChatSession.title,
    ChatSession.created_at,
    ChatSession.updated_at,
    ChatSession.pinned_at,
)
ADD_CHAT = Statement(insert(ChatSession), ("id", "tenant_id", "user_id", "title", "created_at", "updated_at"))
GET_CHAT = Statement(select(*CHAT_COLUMNS).where(this_session(OWNER)))
RENAME_CHAT = Statement(update(ChatSession).where(this_session(OWNER)), ("title",))
_OWN_CHATS = select(*CHAT_COLUMNS).where(
    ChatSession.tenant_id == OWNER.tenant_id, ChatSession.user_id == OWNER.user_id
)
PIN_CHAT = Statement(update(ChatSession).where(this_session(OWNER)), ("pinned_at",))
PINNED_CHATS = Statement(
    _OWN_CHATS.where(ChatSession.pinned_at.is_not(None))
    .order_by(ChatSession.pinned_at.desc(), ChatSession.id)
    .limit(MOST_PINNED)
)
NEWEST_CHATS = Statement(
    _OWN_CHATS.where(ChatSession.pinned_at.is_(None))
    .order_by(ChatSession.updated_at.desc(), ChatSession.id)
    .offset(bindparam("skipped"))
    .limit(bindparam("most"))
)
MESSAGE_COLUMNS = (Message.seq, Message.turn_id, Message.role, Message.content, Message.created_at)


class Chats:
    def __init__(self, db: Database, room: Room | None = None) -> None:
        self._db, self._room = db, room or Room(db)
        self._dialect = db.engine.dialect.name

    def create(self, scope: UserScope) -> Chat:
        now = self._db.clock.utc_now()
        chat = Chat(new_id(), UNTITLED, now, now)
        owner = {"tenant_id": scope.tenant_id, "user_id": scope.user_id}
        with self._db.transaction() as db:
            self._room.require(db, scope, lock_user(db, scope))
            db.run(ADD_CHAT, {**owner, **asdict(chat)})
            index_title(db, scope.within(chat.id), chat.title)
        return chat

    def page(
        self, scope: UserScope, *, words: str = "", page: int = 1, size: int = 30
    ) -> tuple[list[Chat], bool]:
        """One page of the user's chats, newest first, and whether there is another page after it.

        With ``words``, only those that have a message or a title with all of them, pinned or not.
        """
        rows = self._found(scope, words, (page - 1) * size, size + 1)
        return [Chat(*row) for row in rows[:size]], len(rows) > size

    def pinned(self, scope: UserScope) -> list[Chat]:
        """Those that the user has pinned, the last one first. They are in no `page` without words."""
        owner = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
        return [Chat(*row) for row in self._db.look(PINNED_CHATS, owner)]

    def pin(self, scope: Scope, *, pinned: bool) -> None:
        """When it was used last stays as it is. To pin it again changes nothing."""
        with self._db.transaction() as db:
            if lock_chat(db, scope) is None:
                raise NotFound("There is no such chat.")
            already = [row[0] for row in db.run(PINNED_CHATS, owner_parameters(scope)).all()]
            if pinned and scope.session_id in already:
                return
            if pinned and len(already) >= MOST_PINNED:
                raise BadRequest(f"You can pin {MOST_PINNED} chats. Unpin one first.")
            pinned_at = db.clock.utc_now() if pinned else None
            db.run(PIN_CHAT, {**owner_parameters(scope), "pinned_at": pinned_at})

    def _found(self, scope: UserScope, words: str, skipped: int, most: int) -> Sequence[Any]:
        if not words:
            owner = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
            return self._db.look(NEWEST_CHATS, {**owner, "skipped": skipped, "most": most})
        matches = newest_matches(self._dialect, scope, words)
        if matches is None:
            return []
        found = select(matches.c.session_id).distinct().subquery()
        query = select(*CHAT_COLUMNS).where(owned_by(scope, ChatSession))
        query = query.join(found, found.c.session_id == ChatSession.id)
        query = query.order_by(ChatSession.updated_at.desc(), ChatSession.id)
        with self._db.reading() as db:
            return db.execute(query.offset(skipped).limit(most)).all()

    def get(self, scope: Scope) -> Chat:
        found = self._db.look(GET_CHAT, owner_parameters(scope))
        if not found:
            raise NotFound("There is no such chat.")
        return Chat(*found[0])

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
        with self._db.transaction() as db:
            if (chat := lock_chat(db, scope)) is None:
                raise NotFound("There is no such chat.")
            self._room.require(db, scope, chat.stored_bytes)
            db.run(RENAME_CHAT, {**owner_parameters(scope), "title": title})
            index_title(db, scope, title)

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


def _passage(content: str, words: str) -> str:
    start = max(first_place(content, words) - MAX_PASSAGE_CHARS // 2, 0)
    end = min(start + MAX_PASSAGE_CHARS, len(content))
    return ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")
