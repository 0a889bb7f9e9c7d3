"""One page of a chat: some turns of one branch, with their messages and versions.

A branch is a turn, the turns on the way to it, and after it the newest turn each time. Only what is shown is
read, and no way is followed further than a fixed number of steps: a page costs the same however long the chat
is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    BindParameter,
    CursorResult,
    Executable,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from agentapp.errors import NotFound
from agentapp.events import Rendered
from agentapp.isolation import Scope
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_chat
from agentapp.storage.models import Message, Turn
from agentapp.storage.owned import OWNER, in_session, owner_parameters
from agentapp.storage.statements import Statement
from agentapp.storage.turn_rows import rendered_of, stored_turn
from agentapp.storage.values import BranchPage, StoredMessage, Versions

PAGE_TURNS = 30
MAX_STEPS_TO_END = 1_000  # from a turn in the middle; each step costs a few microseconds
MESSAGE_COLUMNS: tuple[Any, ...] = (
    Message.seq,
    Message.turn_id,
    Message.role,
    Message.content,
    Message.created_at,
    Message.html,
    Message.renderer,
)


def _way_back(columns: Sequence[Any], last: BindParameter[int]) -> CTE:
    """Turn number ``last`` and the turns before it in its branch, as many as a page has."""
    turns = select(*columns).where(in_session(OWNER, Turn))
    start = turns.add_columns(literal(1).label("steps")).where(Turn.number == last)
    path = start.cte("path", recursive=True)
    step = turns.add_columns(path.c.steps + 1)
    return path.union_all(step.where(Turn.number == path.c.follows, path.c.steps < PAGE_TURNS))


def _turns_up_to(last: BindParameter[int]) -> Select[Any]:
    columns = [column for column in Turn.__table__.columns if column.name != "admission"]
    path = _way_back(columns, last)
    return select(*(path.c[column.name] for column in columns)).order_by(path.c.number)


def _messages_up_to(last: BindParameter[int]) -> Select[Any]:
    """With an inner join, SQLite would read all messages of the chat and look for their turns on the way."""
    path = _way_back((Turn.id, Turn.number, Turn.follows), last)
    of_turn = and_(Message.turn_id == path.c.id, in_session(OWNER, Message))
    messages: Select[Any] = select(*MESSAGE_COLUMNS).select_from(path).outerjoin(Message, of_turn)
    return messages.order_by(Message.seq)


def _way_to_end(first: BindParameter[int]) -> Select[Any]:
    """From turn number ``first`` on, by the newest turn after each. Numbers grow on the way.

    ``last`` is the last turn of a page that begins there, ``next`` the first one after that page, and ``end``
    is where the way ended after so many ``steps``.
    """
    start = select(Turn.number, literal(1).label("steps")).where(
        in_session(OWNER, Turn), Turn.number == first
    )
    path = start.cte("path", recursive=True)
    after = aliased(Turn)
    newest = select(func.max(after.number)).where(in_session(OWNER, after), after.follows == path.c.number)
    step = select(Turn.number, path.c.steps + 1).where(in_session(OWNER, Turn))
    step = step.join_from(path, Turn, Turn.number == newest.correlate(path).scalar_subquery())
    path = path.union_all(step.where(path.c.steps < MAX_STEPS_TO_END))
    return select(
        func.max(case((path.c.steps <= PAGE_TURNS, path.c.number))).label("last"),
        func.max(case((path.c.steps == PAGE_TURNS + 1, path.c.number))).label("next"),
        func.max(path.c.number).label("end"),
        func.max(path.c.steps).label("steps"),
    )


def _versions_of(numbers: BindParameter[Sequence[int]]) -> Select[Any]:
    """For each turn: how many follow the same one, the how manieth it is, and the ids of those beside it."""
    other = aliased(Turn)
    beside = in_session(OWNER, other), other.follows == Turn.follows
    older, newer = other.number < Turn.number, other.number > Turn.number

    def of_turn(query: Select[Any]) -> ScalarSelect[Any]:
        return query.where(*beside).correlate(Turn).scalar_subquery()

    return select(
        Turn.id,
        of_turn(select(func.count())).label("total"),
        of_turn(select(func.count()).where(older)).label("older"),
        of_turn(select(other.id).where(older).order_by(other.number.desc()).limit(1)).label("previous"),
        of_turn(select(other.id).where(newer).order_by(other.number).limit(1)).label("next"),
    ).where(in_session(OWNER, Turn), Turn.number.in_(numbers))


# Built once: building takes longer than running.
PLACE = select(Turn.id, Turn.number, Turn.follows).where(in_session(OWNER, Turn))
NEWEST_TURN = PLACE.order_by(Turn.number.desc()).limit(1)
TURN_WITH_ID = PLACE.where(Turn.id == bindparam("turn"))
TURNS_WITH_NUMBERS = PLACE.where(Turn.number.in_(bindparam("numbers", expanding=True)))
RUNNING_TURN = select(Turn.id).where(in_session(OWNER, Turn), Turn.status == "running")
TURNS_UP_TO = _turns_up_to(bindparam("last"))
WAY_TO_END = _way_to_end(bindparam("first"))
VERSIONS_OF = _versions_of(bindparam("numbers", expanding=True))
MESSAGES_UP_TO = _messages_up_to(bindparam("last"))
USER_MESSAGE = select(Message.content).where(
    in_session(OWNER, Message), Message.turn_id == bindparam("turn"), Message.role == "user"
)
KEEP_HTML = Statement(
    update(Message)
    .where(in_session(OWNER, Message), Message.seq == bindparam("at"))
    .values(html=bindparam("kept"), renderer=bindparam("made_by"))
)


class Branches:
    """Pages of the branches of a chat. Each raises `NotFound` if it is given a turn of another chat."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def newest(self, scope: Scope) -> BranchPage:
        """The last page of the branch of the newest turn."""
        with self._db.reading() as db:
            newest = _run(db, scope, NEWEST_TURN).first()
            if newest is None:
                return BranchPage()
            return _page(db, scope, newest.number, end=newest.id)

    def through(self, scope: Scope, turn_id: str) -> BranchPage:
        """The page with this turn: the last page of its branch, if the turn is on that. Otherwise it is the
        first turn of the page.
        """
        with self._db.reading() as db:
            way = _run(db, scope, WAY_TO_END, first=_place(db, scope, turn_id).number).one()
            numbers = [way.end, way.next or way.end]
            ids = {each.number: each.id for each in _run(db, scope, TURNS_WITH_NUMBERS, numbers=numbers)}
            end = ids.get(way.end) if way.steps < MAX_STEPS_TO_END else None
            return _page(db, scope, way.last, end=end, following=ids.get(way.next))

    def before(self, scope: Scope, turn_id: str, version: str | None = None) -> BranchPage:
        """The turns before this one. A message that is sent from there goes to the end of the branch through
        ``version``, or through this turn.
        """
        with self._db.reading() as db:
            place = _place(db, scope, turn_id)
            if not place.follows:
                raise NotFound("There are no earlier messages.")
            way = _run(db, scope, WAY_TO_END, first=_place(db, scope, version or turn_id).number).one()
            (end,) = _run(db, scope, TURNS_WITH_NUMBERS, numbers=[way.end])
            known = way.steps < MAX_STEPS_TO_END
            return _page(db, scope, place.follows, end=end.id if known else None, following=turn_id)

    def user_message(self, scope: Scope, turn_id: str) -> str:
        with self._db.reading() as db:
            text: str | None = _run(db, scope, USER_MESSAGE, turn=turn_id).scalar()
            if text is None:
                raise NotFound("There is no such turn.")
            return text

    def keep_html(self, scope: Scope, rendered: Mapping[int, Rendered]) -> None:
        """Keep the HTML of messages, by their ``seq``."""
        values = [
            {**owner_parameters(scope), "at": seq, "kept": made.html, "made_by": made.renderer}
            for seq, made in sorted(rendered.items())
        ]
        self._db.disk.require_reserve()  # it can be made again, so it must not take the last of the disk
        with self._db.transaction() as db:
            lock_chat(db, scope)
            db.run_many(KEEP_HTML, values)


def _page(
    db: Session, scope: Scope, last: int, *, end: str | None, following: str | None = None
) -> BranchPage:
    turns: Sequence[Any] = _run(db, scope, TURNS_UP_TO, last=last).all()
    messages = _run(db, scope, MESSAGES_UP_TO, last=last)
    versions = _run(db, scope, VERSIONS_OF, numbers=[turn.number for turn in turns])
    return BranchPage(
        turns=tuple(stored_turn(db, scope, turn) for turn in turns),
        messages=tuple(_message(row) for row in messages if row.seq is not None),
        versions={
            row.id: Versions(row.older + 1, row.total, row.previous, row.next)
            for row in versions
            if row.total > 1
        },
        has_earlier=bool(turns and turns[0].follows),
        following=following,
        end=end,
        running=_run(db, scope, RUNNING_TURN).scalar(),
    )


def _place(db: Session, scope: Scope, turn_id: str) -> Any:
    found = _run(db, scope, TURN_WITH_ID, turn=turn_id).first()
    if found is None:
        raise NotFound("There is no such turn.")
    return found


def _message(row: Any) -> StoredMessage:
    return StoredMessage(row.seq, row.turn_id, row.role, row.content, row.created_at, rendered_of(row))


def _run(db: Session, scope: Scope, statement: Executable, **values: object) -> CursorResult[Any]:
    return db.connection().execute(statement, {**owner_parameters(scope), **values})
