"""A user's chats: make, list, read, rename and search them.

Turns are written, and chats deleted, in ``storage.turns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import CursorResult, exists, or_, select, update
from sqlalchemy.orm import Session

from agentapp.errors import NotFound
from agentapp.events import Text, agent_of, from_json, text_of
from agentapp.isolation import Scope, UserScope, new_id
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import in_session, like_pattern, owned_by, this_session
from agentapp.storage.turn_rows import events_so_far, result_of
from agentapp.storage.values import Chat, StoredMessage, StoredTurn, Transcript, utc_now
from agentapp.turns.values import UNTITLED

MAX_PASSAGE_CHARS = 160


class Chats:
    def __init__(self, db: Database) -> None:
        self._db = db

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
            db.add(row)
            return _chat(row)

    def page(
        self, scope: UserScope, *, words: str = "", page: int = 1, size: int = 30
    ) -> tuple[list[Chat], bool]:
        """One page of the user's chats, newest first, and whether there is another page after it."""
        query = select(ChatSession).where(owned_by(scope, ChatSession))
        if words:
            said = exists().where(
                Message.session_id == ChatSession.id,
                owned_by(scope, Message),
                Message.content.ilike(like_pattern(words), escape="\\"),
            )
            query = query.where(or_(ChatSession.title.ilike(like_pattern(words), escape="\\"), said))
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
            messages = db.scalars(select(Message).where(said).order_by(Message.seq)).all()
            stored = tuple(_stored_turn(db, scope, turn) for turn in turns)
            return Transcript(chat, stored, tuple(map(_message, messages)))

    def rename(self, scope: Scope, title: str) -> None:
        with self._db.writing() as db:
            _require_found(db.execute(update(ChatSession).where(this_session(scope)).values(title=title)))

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        """Passages with these words in the user's other chats, newest first. Each is title, day, passage."""
        hits = (
            select(ChatSession.title, Message.created_at, Message.content)
            .join(ChatSession, ChatSession.id == Message.session_id)
            .where(owned_by(scope, Message), owned_by(scope, ChatSession))
            .where(Message.session_id != scope.session_id)
            .where(Message.content.ilike(like_pattern(words), escape="\\"))
            .order_by(Message.created_at.desc())
            .limit(limit)
        )
        with self._db.reading() as db:
            found = db.execute(hits).all()
        return [(title, f"{when:%Y-%m-%d}", _passage(content, words)) for title, when, content in found]


def _stored_turn(db: Session, scope: Scope, row: Turn) -> StoredTurn:
    result = result_of(row)
    if result.status == "running":
        events = events_so_far(db, scope, row.id)
        result = replace(result, agent=agent_of(events))
        activity = [event for event in events if not isinstance(event, Text)]
    else:
        events = []
        activity = [from_json(*entry) for entry in row.log if not isinstance(entry, int)]
    return StoredTurn(
        id=row.id,
        number=row.number,
        follows=row.follows,
        result=result,
        activity=tuple(activity),
        reply_so_far=text_of(events),
        request_id=row.request_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _require_found(result: object) -> None:
    if isinstance(result, CursorResult) and result.rowcount != 1:
        raise NotFound("There is no such chat.")


def _chat(row: ChatSession) -> Chat:
    return Chat(row.id, row.title, row.created_at, row.updated_at)


def _message(row: Message) -> StoredMessage:
    return StoredMessage(row.seq, row.turn_id, row.role, row.content, row.created_at)


def _passage(content: str, words: str) -> str:
    at = max(content.casefold().find(words.casefold()), 0)
    start = max(at - MAX_PASSAGE_CHARS // 2, 0)
    end = min(start + MAX_PASSAGE_CHARS, len(content))
    return ("…" if start else "") + content[start:end] + ("…" if end < len(content) else "")
