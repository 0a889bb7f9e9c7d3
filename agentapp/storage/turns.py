"""The write transactions of a turn: begin it, settle it, or give it up when its worker is gone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    CursorResult,
    Executable,
    Row,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session

from agentapp.errors import IdempotencyMismatch, NotFound, TurnInProgress
from agentapp.guardrails.admission import MaxCost, Reservation
from agentapp.guardrails.cell import Key
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from agentapp.isolation import Scope
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import UNTITLED
from agentapp.storage.db import Database
from agentapp.storage.log import agent_of, packed, text_of
from agentapp.storage.models import ChatSession, LiveTurn, Message, Turn
from agentapp.storage.owned import OWNER, in_session, named, this_session
from agentapp.storage.telling import events_so_far
from agentapp.storage.values import Again, Begun, Lease, Sent, Settled, new_id, utc_now

HISTORY_TURNS = 100
TITLE_CHARS = 60
CLOCK_SKEW = timedelta(seconds=CLOCK_SKEW_SECONDS)


def _way_to(last: Any) -> Select[str, str]:
    """What was said on the way to turn number ``last``: other versions are not part of it."""
    columns = select(Turn.id, Turn.number, Turn.follows)
    way = columns.add_columns(literal(1).label("steps")).where(in_session(OWNER, Turn), Turn.number == last)
    back = way.cte("way", recursive=True)
    further = columns.add_columns(back.c.steps + 1).where(in_session(OWNER, Turn))
    further = further.where(Turn.number == back.c.follows, back.c.steps < HISTORY_TURNS)
    back = back.union_all(further)
    said = select(Message.role, Message.content).join(back, back.c.id == Message.turn_id)
    return said.where(in_session(OWNER, Message)).order_by(Message.seq)


# Built once: every turn runs nearly all of them, and building them took three times as long as running them.
CHAT = select(ChatSession.title).where(this_session(OWNER)).with_for_update()
RUNNING = (
    select(Turn.id, LiveTurn.lease_until, Turn.admission)
    .outerjoin(LiveTurn, LiveTurn.turn_id == Turn.id)
    .where(in_session(OWNER, Turn), Turn.status == "running")
)
ASKED = select(Message.content, Message.turn_id).where(in_session(OWNER, Message), Message.role == "user")
ASKED_IN = ASKED.where(Message.turn_id == bindparam("turn"))
ASKED_WITH = ASKED.join(Turn, Turn.id == Message.turn_id).where(
    in_session(OWNER, Turn), Turn.idempotency_key == bindparam("key")
)
PLACE = select(Turn.number, Turn.follows, Turn.next_agent).where(in_session(OWNER, Turn))
NEWEST = PLACE.order_by(Turn.number.desc()).limit(1)
NAMED = PLACE.where(Turn.id == bindparam("turn"))
NUMBERED = PLACE.where(Turn.number == bindparam("at"))
SAID_BEFORE = _way_to(bindparam("at"))
LAST_SEQ = select(func.coalesce(func.max(Message.seq), 0)).where(in_session(OWNER, Message))
SAY = insert(Message).values(seq=LAST_SEQ.scalar_subquery() + 1)
BEGIN, LIVE = insert(Turn), insert(LiveTurn)
TOUCH = update(ChatSession).where(this_session(OWNER))
END = update(Turn).where(in_session(OWNER, Turn), Turn.id == bindparam("turn"), Turn.status == "running")
BURY = delete(LiveTurn).where(in_session(OWNER, LiveTurn), LiveTurn.turn_id == bindparam("turn"))


class Turns:
    def __init__(self, db: Database, cells: CellStore, guardrails: Guardrails) -> None:
        self._db, self._cells, self._guardrails = db, cells, guardrails

    def begin(self, scope: Scope, sent: Sent, lease: Lease, max_cost: MaxCost) -> Begun | Again:
        """Take the user's message in and mark the session as answering, or refuse and change nothing."""
        with self._db.writing() as db:
            title = _locked_chat(db, scope)
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
            reservation, tools = self._guardrails.admit(self._cells.rows(db), scope, max_cost)
            turn_id = new_id()
            _run(db, BEGIN, scope, **_running_turn(scope, turn_id, place, sent.key, now, reservation))
            _run(db, LIVE, scope, **_live_turn(scope, turn_id, now, lease))
            _say(db, scope, turn_id, "user", text, now)
            title = title_of(text) if title == UNTITLED else title
            _run(db, TOUCH, scope, title=title, updated_at=now)
            return Begun(turn_id, text, place.agent, history, title, reservation, tools)

    def settle(self, scope: Scope, turn_id: str, end: Settled) -> bool:
        """Write how the turn ended. False if it is running no more: ended by somebody else, or deleted.

        What it spent was spent in any case, and is counted.
        """
        now = utc_now()
        with self._db.writing() as db:
            # The chat comes first, as everywhere here. Whoever had the turn already would wait for the
            # cells of one who gives this turn up, and that one for the turn.
            is_there = _run(db, CHAT, scope).first() is not None
            rows = self._cells.rows(db)
            ended = _run(db, END, scope, turn=turn_id, ended_at=now, **_columns(end))
            if ended.rowcount != 1:
                self._guardrails.charge(rows, scope, end.result)
                if not is_there:  # deleted: its own cell went with it
                    rows.remove(Key("session", scope.session_id))
                return False
            _run(db, TOUCH, scope, updated_at=now)
            if end.reply:
                _say(db, scope, turn_id, "assistant", end.reply, now)
            self._guardrails.settle(rows, scope, end.reservation, end.result)
            _bury(db, scope, turn_id)
            return True

    def end_dead(self, scope: Scope, lease: Lease) -> None:
        """If the session's running turn has lost its worker, write down that it was interrupted. Once."""
        with self._db.writing() as db:
            if _run(db, CHAT, scope).first() is not None:
                self._end_dead(db, scope, utc_now(), lease.length)

    def delete_chat(self, scope: Scope) -> None:
        """The chat and all that was said in it. What a turn under way has reserved is given back."""
        with self._db.writing() as db:
            _locked_chat(db, scope)
            running = _running(db, scope)
            if running is not None:
                self._give_back(db, scope, running.admission)
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
        if until is not None and now <= until <= now + lease + CLOCK_SKEW:
            return str(running.id)
        events = events_so_far(db, scope, running.id)
        values = {"status": "interrupted", "ended_at": now, "log": packed(events), "agent": agent_of(events)}
        _run(db, END, scope, turn=running.id, **values)
        if said := text_of(events):
            _say(db, scope, running.id, "assistant", said, now)
        self._give_back(db, scope, running.admission)
        _bury(db, scope, running.id)
        return None

    def _give_back(self, db: Session, scope: Scope, admission: Any) -> None:
        if admission is not None:
            self._guardrails.give_back(self._cells.rows(db), scope, Reservation.from_json(admission))


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


def _run(db: Session, statement: Executable, scope: Scope, **values: Any) -> CursorResult[Any]:
    return db.connection().execute(statement, {**named(scope), **values})


def _bury(db: Session, scope: Scope, turn_id: str) -> None:
    """Last of all: the journal holds such rows too, of many turns, and asks for nothing after them. Whoever
    waited for a cell with one of them in hand could wait for ever.
    """
    _run(db, BURY, scope, turn=turn_id)


def _locked_chat(db: Session, scope: Scope) -> str:
    """Its title."""
    title: str | None = _run(db, CHAT, scope).scalar()
    if title is None:
        raise NotFound("There is no such chat.")
    return title


def _running(db: Session, scope: Scope) -> Row[Any] | None:
    """Its ``id``, ``lease_until`` and ``admission``."""
    return _run(db, RUNNING, scope).first()


def _text_of(db: Session, scope: Scope, sent: Sent) -> str:
    if sent.text is not None:
        return sent.text
    text: str | None = _run(db, ASKED_IN, scope, turn=sent.replaces).scalar()
    if text is None:
        raise NotFound("There is no such turn.")
    return text


def _same_key(db: Session, scope: Scope, key: str | None, text: str) -> Again | None:
    found = None if key is None else _run(db, ASKED_WITH, scope, key=key).first()
    if found is None:
        return None
    if found.content != text:
        raise IdempotencyMismatch("This idempotency key was already used for another message in this chat.")
    return Again(found.turn_id)


class _Place(NamedTuple):
    """Where in the chat a turn goes, and which agent it begins with."""

    number: int
    follows: int
    agent: str


def _place(db: Session, scope: Scope, sent: Sent) -> _Place:
    before = _run(db, NEWEST, scope).first()
    number = 1 if before is None else before.number + 1
    if (turn_id := sent.replaces or sent.after) is not None:
        before = _run(db, NAMED, scope, turn=turn_id).first()
        if before is None:
            raise NotFound("There is no such turn.")
    if sent.replaces is not None and before is not None:
        before = _run(db, NUMBERED, scope, at=before.follows).first()
    return _Place(number, before.number, before.next_agent) if before is not None else _Place(number, 0, "")


def _history(db: Session, scope: Scope, last: int) -> tuple[tuple[str, str], ...]:
    return tuple((said.role, said.content) for said in _run(db, SAID_BEFORE, scope, at=last)) if last else ()


def _say(db: Session, scope: Scope, turn_id: str, role: str, content: str, now: datetime) -> None:
    values = {"id": new_id(), "turn_id": turn_id, "role": role, "content": content, "created_at": now}
    _run(db, SAY, scope, **_owner(scope), **values)


def _owner(scope: Scope) -> dict[str, str]:
    return {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "session_id": scope.session_id}


def _running_turn(
    scope: Scope, turn_id: str, place: _Place, key: str | None, now: datetime, reservation: Reservation
) -> dict[str, Any]:
    return {
        **_owner(scope),
        "id": turn_id,
        "request_id": scope.request_id,
        "number": place.number,
        "follows": place.follows,
        "idempotency_key": key,
        "status": "running",
        "agent": place.agent,
        "next_agent": "",
        "log": [],
        "input_tokens": 0,
        "output_tokens": 0,
        "model_calls": 0,
        "started_at": now,
        "admission": reservation.to_json(),
    }


def _live_turn(scope: Scope, turn_id: str, now: datetime, lease: Lease) -> dict[str, Any]:
    return {
        **_owner(scope),
        "turn_id": turn_id,
        "worker": lease.worker,
        "lease_until": now + lease.length,
        "stop_asked": False,
    }
