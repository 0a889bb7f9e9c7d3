"""The two write transactions of a turn: begin it, settle it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CursorResult, Row, delete, func, select, update
from sqlalchemy.orm import Session

from agentapp.errors import IdempotencyMismatch, NotFound, TurnInProgress
from agentapp.guardrails.admission import Pass, Wish
from agentapp.guardrails.cell import Key
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.moments import SLACK
from agentapp.isolation import Scope
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import UNTITLED, stored_turn
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.owned import in_session, this_session
from agentapp.storage.values import Begun, Settled, new_id, utc_now

HISTORY_MESSAGES = 200
TITLE_CHARS = 60
CLOCK_SLACK = timedelta(seconds=SLACK)


class Turns:
    def __init__(self, db: Database, cells: CellStore, guardrails: Guardrails) -> None:
        self._db, self._cells, self._guardrails = db, cells, guardrails

    def begin(self, scope: Scope, text: str, key: str | None, lease: timedelta, wish: Wish) -> Begun:
        """Take the user's message in and mark the session as answering, or refuse and change nothing."""
        with self._db.writing() as db:
            chat = _locked_chat(db, scope)
            now = utc_now()  # not before: what others did while this one waited must not lie ahead of it
            alive = self._end_dead(db, scope, now, lease)
            again = _same_key(db, scope, key, text)
            if again is not None:
                return again
            if alive is not None:
                raise TurnInProgress(alive)
            history = _history(db, scope)
            # As late as can be: on PostgreSQL others wait for these rows until the transaction ends.
            ticket, tools = self._guardrails.admit(self._cells.rows(db), scope, wish)
            turn = _running_turn(scope, chat.agent, key, now, lease, ticket)
            db.add(turn)
            db.flush()
            db.add(_message(db, scope, turn.id, "user", text, now))
            title = title_of(text) if chat.title == UNTITLED else chat.title
            db.execute(update(ChatSession).where(this_session(scope)).values(title=title, updated_at=now))
            return Begun(turn.id, chat.agent, history, title, ticket=ticket, tools=tools)

    def settle(self, scope: Scope, turn_id: str, end: Settled) -> bool:
        """Write how the turn ended. False if it is running no more: ended by somebody else, or deleted.

        What it spent was spent in any case, and is counted.
        """
        now = utc_now()
        running = (in_session(scope, Turn), Turn.id == turn_id, Turn.status == "running")
        with self._db.writing() as db:
            # The chat comes first, as everywhere here. Whoever had the turn already would wait for the
            # cells of one who gives this turn up, and that one for the turn.
            chat = db.scalar(select(ChatSession.id).where(this_session(scope)).with_for_update())
            rows = self._cells.rows(db)
            settled = db.execute(update(Turn).where(*running).values(ended_at=now, **_columns(end)))
            if not isinstance(settled, CursorResult) or settled.rowcount != 1:
                self._guardrails.charge(rows, scope, end.outcome)
                if chat is None:  # deleted: its own cell went with it
                    rows.remove(Key("session", scope.session_id))
                return False
            moved = {"agent": end.stays_with, "updated_at": now}
            db.execute(update(ChatSession).where(this_session(scope)).values(**moved))
            if end.reply:
                db.add(_message(db, scope, turn_id, "assistant", end.reply, now))
                db.flush()
            self._guardrails.settle(rows, scope, end.ticket, end.outcome)
            return True

    def delete_chat(self, scope: Scope) -> None:
        """The chat and all that was said in it. What a turn under way has reserved is given back."""
        with self._db.writing() as db:
            _locked_chat(db, scope)
            for _, _, admission in _running(db, scope):
                self._withdraw(db, scope, admission)
            db.execute(delete(ChatSession).where(this_session(scope)))
            self._cells.rows(db).remove(Key("session", scope.session_id))

    def _end_dead(self, db: Session, scope: Scope, now: datetime, lease: timedelta) -> str | None:
        """A turn whose lease ran out lost its worker. It must not keep the session from going on.

        A lease longer than any that is given out comes from a clock that was put back since. What is
        returned is the turn that is still alive, if one is.
        """
        for turn_id, lease_until, admission in _running(db, scope):
            if now <= lease_until <= now + lease + CLOCK_SLACK:
                return turn_id
            self._withdraw(db, scope, admission)
            dead = (in_session(scope, Turn), Turn.id == turn_id)
            db.execute(update(Turn).where(*dead).values(status="interrupted", ended_at=now))
        return None

    def _withdraw(self, db: Session, scope: Scope, admission: list[Any] | None) -> None:
        if admission is not None:
            self._guardrails.withdraw(self._cells.rows(db), scope, Pass.from_json(admission))


def title_of(text: str) -> str:
    """A chat is called after its first message until somebody renames it."""
    line = " ".join(text.split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"


def _columns(end: Settled) -> dict[str, Any]:
    return {
        "status": end.status,
        "agent": end.agent,
        "activity": list(end.activity),
        "input_tokens": end.input_tokens,
        "output_tokens": end.output_tokens,
        "model_calls": end.model_calls,
        "cost_microusd": end.cost_microusd,
        "error_code": end.error_code,
        "error_message": end.error_message,
    }


def _locked_chat(db: Session, scope: Scope) -> ChatSession:
    chat = db.scalar(select(ChatSession).where(this_session(scope)).with_for_update())
    if chat is None:
        raise NotFound("There is no such chat.")
    return chat


def _running(db: Session, scope: Scope) -> Sequence[Row[str, datetime, list[Any] | None]]:
    columns = select(Turn.id, Turn.lease_until, Turn.admission)
    return db.execute(columns.where(in_session(scope, Turn), Turn.status == "running")).all()


def _same_key(db: Session, scope: Scope, key: str | None, text: str) -> Begun | None:
    if key is None:
        return None
    turn = db.scalar(select(Turn).where(in_session(scope, Turn), Turn.idempotency_key == key))
    if turn is None:
        return None
    said = _said_in(db, scope, turn.id)
    if said.get("user") != text:
        raise IdempotencyMismatch("This idempotency key was already used for another message in this chat.")
    if turn.status == "running":
        raise TurnInProgress(turn.id)
    chat = _locked_chat(db, scope)
    return Begun(turn.id, turn.agent, (), chat.title, stored_turn(turn), said.get("assistant", ""))


def _said_in(db: Session, scope: Scope, turn_id: str) -> dict[str, str]:
    rows = db.scalars(select(Message).where(in_session(scope, Message), Message.turn_id == turn_id))
    return {row.role: row.content for row in rows}


def _history(db: Session, scope: Scope) -> tuple[tuple[str, str], ...]:
    said = select(Message.role, Message.content).where(in_session(scope, Message))
    newest = db.execute(said.order_by(Message.seq.desc()).limit(HISTORY_MESSAGES))
    return tuple(reversed([(role, content) for role, content in newest]))


def _running_turn(
    scope: Scope, agent: str, key: str | None, now: datetime, lease: timedelta, ticket: Pass
) -> Turn:
    return Turn(
        id=new_id(),
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        session_id=scope.session_id,
        request_id=scope.request_id,
        idempotency_key=key,
        status="running",
        agent=agent,
        activity=[],
        input_tokens=0,
        output_tokens=0,
        model_calls=0,
        started_at=now,
        lease_until=now + lease,
        admission=ticket.as_json(),
    )


def _message(db: Session, scope: Scope, turn_id: str, role: str, content: str, now: datetime) -> Message:
    last = db.scalar(select(func.max(Message.seq)).where(in_session(scope, Message))) or 0
    return Message(
        id=new_id(),
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        session_id=scope.session_id,
        turn_id=turn_id,
        seq=last + 1,
        role=role,
        content=content,
        created_at=now,
    )
