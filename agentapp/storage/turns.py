"""The write transactions of a turn: begin it, settle it, or give it up when its worker is gone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import CursorResult, Row, delete, func, literal, select, update
from sqlalchemy.orm import Session

from agentapp.errors import IdempotencyMismatch, NotFound, TurnInProgress
from agentapp.guardrails.admission import Pass, Wish
from agentapp.guardrails.cell import Key
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.moments import SLACK
from agentapp.isolation import Scope
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import UNTITLED
from agentapp.storage.db import Database
from agentapp.storage.log import agent_of, packed, text_of
from agentapp.storage.models import ChatSession, LiveTurn, Message, Turn
from agentapp.storage.owned import in_session, this_session
from agentapp.storage.telling import events_so_far
from agentapp.storage.values import Again, Begun, Lease, Sent, Settled, new_id, utc_now

HISTORY_TURNS = 100
TITLE_CHARS = 60
CLOCK_SLACK = timedelta(seconds=SLACK)


class Turns:
    def __init__(self, db: Database, cells: CellStore, guardrails: Guardrails) -> None:
        self._db, self._cells, self._guardrails = db, cells, guardrails

    def begin(self, scope: Scope, sent: Sent, lease: Lease, wish: Wish) -> Begun | Again:
        """Take the user's message in and mark the session as answering, or refuse and change nothing."""
        with self._db.writing() as db:
            chat = _locked_chat(db, scope)
            now = utc_now()  # not before: what others did while this one waited must not lie ahead of it
            alive = self._end_dead(db, scope, now, lease.length)
            text = _text_of(db, scope, sent)
            again = _same_key(db, scope, sent.key, text)
            if again is not None:
                return again
            if alive is not None:
                raise TurnInProgress(alive)
            place = _place(db, scope, sent)
            history = _history(db, scope, place.follows)
            # As late as can be: on PostgreSQL others wait for these rows until the transaction ends.
            ticket, tools = self._guardrails.admit(self._cells.rows(db), scope, wish)
            turn = _running_turn(scope, place, sent.key, now, ticket)
            db.add(turn)
            db.flush()
            db.add(_live_turn(scope, turn.id, now, lease))
            db.add(_message(db, scope, turn.id, "user", text, now))
            title = title_of(text) if chat.title == UNTITLED else chat.title
            db.execute(update(ChatSession).where(this_session(scope)).values(title=title, updated_at=now))
            return Begun(turn.id, text, place.agent, history, title, ticket, tools)

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
            db.execute(update(ChatSession).where(this_session(scope)).values(updated_at=now))
            if end.reply:
                db.add(_message(db, scope, turn_id, "assistant", end.reply, now))
                db.flush()
            self._guardrails.settle(rows, scope, end.ticket, end.outcome)
            _bury(db, scope, turn_id)
            return True

    def end_dead(self, scope: Scope, lease: Lease) -> None:
        """If the session's running turn has lost its worker, write down that it was interrupted. Once."""
        with self._db.writing() as db:
            if db.scalar(select(ChatSession.id).where(this_session(scope)).with_for_update()) is not None:
                self._end_dead(db, scope, utc_now(), lease.length)

    def delete_chat(self, scope: Scope) -> None:
        """The chat and all that was said in it. What a turn under way has reserved is given back."""
        with self._db.writing() as db:
            _locked_chat(db, scope)
            running = _running(db, scope)
            if running is not None:
                self._withdraw(db, scope, running.admission)
            db.execute(delete(ChatSession).where(this_session(scope)))
            self._cells.rows(db).remove(Key("session", scope.session_id))

    def _end_dead(self, db: Session, scope: Scope, now: datetime, lease: timedelta) -> str | None:
        """A turn whose lease ran out lost its worker. It must not keep the session from going on.

        A lease longer than any that is given out comes from a clock that was put back since. What is
        returned is the turn that is still alive, if one is.
        """
        running = _running(db, scope)
        if running is None:
            return None
        until: datetime | None = running.lease_until
        if until is not None and now <= until <= now + lease + CLOCK_SLACK:
            return str(running.id)
        events = events_so_far(db, scope, running.id)
        values = {"status": "interrupted", "ended_at": now, "log": packed(events), "agent": agent_of(events)}
        db.execute(update(Turn).where(in_session(scope, Turn), Turn.id == running.id).values(**values))
        if said := text_of(events):
            db.add(_message(db, scope, running.id, "assistant", said, now))
            db.flush()
        self._withdraw(db, scope, running.admission)
        _bury(db, scope, running.id)
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
        "next_agent": end.next_agent,
        "log": list(end.log),
        "input_tokens": end.input_tokens,
        "output_tokens": end.output_tokens,
        "model_calls": end.model_calls,
        "cost_microusd": end.cost_microusd,
        "error_code": end.error_code,
        "error_message": end.error_message,
    }


def _bury(db: Session, scope: Scope, turn_id: str) -> None:
    """Last of all: the journal holds such rows too, of many turns, and asks for nothing after them. Whoever
    waited for a cell with one of them in hand could wait for ever.
    """
    db.execute(delete(LiveTurn).where(in_session(scope, LiveTurn), LiveTurn.turn_id == turn_id))


def _locked_chat(db: Session, scope: Scope) -> ChatSession:
    chat = db.scalar(select(ChatSession).where(this_session(scope)).with_for_update())
    if chat is None:
        raise NotFound("There is no such chat.")
    return chat


def _running(db: Session, scope: Scope) -> Row[str, datetime, list[Any] | None] | None:
    columns = select(Turn.id, LiveTurn.lease_until, Turn.admission)
    joined = columns.outerjoin(LiveTurn, LiveTurn.turn_id == Turn.id)
    return db.execute(joined.where(in_session(scope, Turn), Turn.status == "running")).first()


def _text_of(db: Session, scope: Scope, sent: Sent) -> str:
    if sent.text is not None:
        return sent.text
    said = select(Message.content).where(in_session(scope, Message), Message.turn_id == sent.replaces)
    text = db.scalar(said.where(Message.role == "user"))
    if text is None:
        raise NotFound("There is no such turn.")
    return text


def _same_key(db: Session, scope: Scope, key: str | None, text: str) -> Again | None:
    if key is None:
        return None
    turn_id = db.scalar(select(Turn.id).where(in_session(scope, Turn), Turn.idempotency_key == key))
    if turn_id is None:
        return None
    said = select(Message.content).where(in_session(scope, Message), Message.turn_id == turn_id)
    if db.scalar(said.where(Message.role == "user")) != text:
        raise IdempotencyMismatch("This idempotency key was already used for another message in this chat.")
    return Again(turn_id)


class _Place(NamedTuple):
    """Where in the chat a turn goes, and which agent it begins with."""

    number: int
    follows: int
    agent: str


def _place(db: Session, scope: Scope, sent: Sent) -> _Place:
    mine = in_session(scope, Turn)
    columns = select(Turn.number, Turn.follows, Turn.next_agent).where(mine)
    newest = db.execute(columns.order_by(Turn.number.desc()).limit(1)).first()
    if newest is None:
        before, number = None, 1
    else:
        before, number = newest, newest.number + 1
    if (named := sent.replaces or sent.after) is not None:
        before = db.execute(columns.where(Turn.id == named)).first()
        if before is None:
            raise NotFound("There is no such turn.")
    if sent.replaces is not None and before is not None:
        before = db.execute(columns.where(Turn.number == before.follows)).first()
    return _Place(number, before.number, before.next_agent) if before is not None else _Place(number, 0, "")


def _history(db: Session, scope: Scope, last: int) -> tuple[tuple[str, str], ...]:
    """What was said on the way to turn number ``last``: other versions are not part of it."""
    columns = select(Turn.id, Turn.number, Turn.follows)
    way = columns.add_columns(literal(1).label("steps")).where(in_session(scope, Turn), Turn.number == last)
    back = way.cte("way", recursive=True)
    further = columns.add_columns(back.c.steps + 1).where(in_session(scope, Turn))
    further = further.where(Turn.number == back.c.follows, back.c.steps < HISTORY_TURNS)
    back = back.union_all(further)
    said = select(Message.role, Message.content).join(back, back.c.id == Message.turn_id)
    found = db.execute(said.where(in_session(scope, Message)).order_by(Message.seq))
    return tuple((role, content) for role, content in found)


def _running_turn(scope: Scope, place: _Place, key: str | None, now: datetime, ticket: Pass) -> Turn:
    return Turn(
        id=new_id(),
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        session_id=scope.session_id,
        request_id=scope.request_id,
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
        started_at=now,
        admission=ticket.as_json(),
    )


def _live_turn(scope: Scope, turn_id: str, now: datetime, lease: Lease) -> LiveTurn:
    return LiveTurn(
        turn_id=turn_id,
        tenant_id=scope.tenant_id,
        user_id=scope.user_id,
        session_id=scope.session_id,
        worker=lease.worker,
        lease_until=now + lease.length,
        stop_asked=False,
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
