"""The statements of a turn's transactions. Every turn runs nearly all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import (
    BindParameter,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)
from sqlalchemy.orm import aliased

from agentapp.storage.locks import LOCK_CHAT
from agentapp.storage.models import ChargedTurn, ChatSession, LiveTurn, Message, Turn, TurnEvents, User
from agentapp.storage.owned import OWNER, in_session, owned_by, this_session
from agentapp.storage.search import REMOVE_TITLE
from agentapp.storage.statements import Statement

MAX_HISTORY_TURNS = 100


def _messages_up_to(
    last: BindParameter[int] | ScalarSelect[int],
) -> Select[int, str, str, str, str, str]:
    """The messages of turn number ``last`` and of the turns it follows. Other versions are left out.

    The query starts at that turn and steps back from each turn to the one it follows. With an inner join,
    SQLite would read all messages of the chat and look for their turns on the way.
    """
    turns = select(Turn.id, Turn.number, Turn.follows).where(in_session(OWNER, Turn))
    start = turns.add_columns(literal(1).label("steps")).where(Turn.number == last)
    path = start.cte("path", recursive=True)
    step = turns.add_columns(path.c.steps + 1)
    step = step.where(Turn.number == path.c.follows, path.c.steps < MAX_HISTORY_TURNS)
    path = path.union_all(step)
    of_turn = and_(Message.turn_id == path.c.id, in_session(OWNER, Message))
    owner = (Message.tenant_id, Message.user_id, Message.session_id)
    return (
        select(Message.seq, Message.role, Message.content, *owner)
        .select_from(path)
        .outerjoin(Message, of_turn)
    )


def _in_one_value(messages: Select[int, str, str, str, str, str]) -> Mapping[str, Statement]:
    """All of them as one JSON text: the driver gives way to other threads at every row that it fetches, and
    the writer's lock is held meanwhile. After it, the smallest and the greatest id of their owners: the same
    twice, if all is well.
    """
    each = messages.subquery()
    columns = (each.c.seq, each.c.role, each.c.content)
    ids = (each.c.tenant_id, each.c.user_id, each.c.session_id)
    owners = [bound(id) for id in ids for bound in (func.min, func.max)]
    return MappingProxyType(
        {
            "sqlite": Statement(select(func.json_group_array(func.json_array(*columns)), *owners)),
            "postgresql": Statement(select(func.json_agg(func.json_build_array(*columns)), *owners)),
        }
    )


_OWN_TURNS = in_session(OWNER, Turn)
# Not a parameter: SQLite would not use the index of the running turns, which is an index of this word.
_IS_RUNNING = Turn.status == literal_column("'running'")
_NEWEST = select(Turn.number).where(_OWN_TURNS).order_by(Turn.number.desc()).limit(1)
_USER_MESSAGE = select(Message.content, Message.turn_id).where(
    in_session(OWNER, Message), Message.role == "user"
)
_PLACE = select(Turn.number, Turn.follows, Turn.next_agent).where(_OWN_TURNS)
_LAST_SEQ = select(func.coalesce(func.max(Message.seq), 0)).where(in_session(OWNER, Message))
_TURN_ID = Turn.id == bindparam("turn")

# What a new message depends on, in one look.
READ_CHAT = Statement(
    select(
        ChatSession.title,
        User.stored_bytes,
        select(Turn.id).where(_OWN_TURNS, _IS_RUNNING).scalar_subquery(),
        select(Turn.id).where(_OWN_TURNS, Turn.idempotency_key == bindparam("key")).scalar_subquery(),
        _NEWEST.scalar_subquery(),
        _NEWEST.with_only_columns(Turn.next_agent).scalar_subquery(),
    )
    .join(User, User.id == ChatSession.user_id)
    .where(this_session(OWNER))
)
HISTORY = _in_one_value(_messages_up_to(bindparam("at")))
HISTORY_OF_NEWEST = _in_one_value(_messages_up_to(_NEWEST.scalar_subquery()))
RUNNING_TURN = Statement(
    select(Turn.id, LiveTurn.worker, LiveTurn.lease_until, Turn.admission, Turn.request_id)
    .outerjoin(LiveTurn, LiveTurn.turn_id == Turn.id)
    .where(_OWN_TURNS, _IS_RUNNING)
)
OTHER_RUNNING_TURNS = Statement(
    select(func.count()).select_from(LiveTurn).where(LiveTurn.session_id != OWNER.session_id)
)
MESSAGE_OF_TURN = Statement(_USER_MESSAGE.where(Message.turn_id == bindparam("turn")))
TURN_WITH_ID = Statement(_PLACE.where(_TURN_ID))
TURN_WITH_NUMBER = Statement(_PLACE.where(Turn.number == bindparam("at")))
ADD_MESSAGE = Statement(
    insert(Message).values(seq=_LAST_SEQ.scalar_subquery() + 1),
    tuple(column.name for column in Message.__table__.columns if column.name != "seq"),
)
ADD_TURN = Statement(insert(Turn))
ADD_LIVE_TURN = Statement(insert(LiveTurn))
TOUCH_CHAT = Statement(update(ChatSession).where(this_session(OWNER)), ("updated_at",))
NAME_CHAT = Statement(update(ChatSession).where(this_session(OWNER)), ("updated_at", "title"))
_USAGE_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "model_calls",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_microusd",
)
_END_COLUMNS = (
    "status",
    "agent",
    "next_agent",
    "error_code",
    "error_message",
    "can_retry",
    "ended_at",
    "log",
)
END_TURN = Statement(
    update(Turn).where(_OWN_TURNS, _TURN_ID, _IS_RUNNING).returning(Turn.id),
    (*_END_COLUMNS, *_USAGE_COLUMNS),
)
_newer = aliased(Turn)
_NEWEST_NUMBER = select(func.max(_newer.number)).where(in_session(OWNER, _newer)).scalar_subquery()
COMPLETE_INTERRUPTED = Statement(
    update(Turn)
    .where(_OWN_TURNS, _TURN_ID, Turn.status == "interrupted", Turn.number == _NEWEST_NUMBER)
    .returning(Turn.id),
    (*_END_COLUMNS, *_USAGE_COLUMNS),
)
REMOVE_REPLY = Statement(
    delete(Message).where(
        in_session(OWNER, Message), Message.turn_id == bindparam("turn"), Message.role == "assistant"
    )
)
ENDED_TURN = Statement(
    select(
        Turn.status,
        Turn.input_tokens,
        Turn.output_tokens,
        Turn.model_calls,
        Turn.cache_read_tokens,
        Turn.cache_write_tokens,
    ).where(_OWN_TURNS, _TURN_ID, Turn.status != "running")
)
CORRECT_USAGE = Statement(update(Turn).where(_OWN_TURNS, _TURN_ID), _USAGE_COLUMNS)
LAST_SPENT = Statement(
    select(TurnEvents.spent)
    .where(in_session(OWNER, TurnEvents), TurnEvents.turn_id == bindparam("turn"))
    .order_by(TurnEvents.first.desc())
    .limit(1)
)
LEAVE_CHARGE = Statement(insert(ChargedTurn))
TAKE_CHARGE = Statement(
    delete(ChargedTurn)
    .where(in_session(OWNER, ChargedTurn), ChargedTurn.turn_id == bindparam("turn"))
    .returning(ChargedTurn.spent)
)
# The user's own, whose row is locked: so nobody waits for somebody else here.
DELETE_OLD_CHARGES = Statement(
    delete(ChargedTurn).where(owned_by(OWNER, ChargedTurn), ChargedTurn.charged_at < bindparam("before"))
)
REMOVE_LIVE_TURN = Statement(
    delete(LiveTurn).where(in_session(OWNER, LiveTurn), LiveTurn.turn_id == bindparam("turn"))
)
DELETE_CHAT = Statement(delete(ChatSession).where(this_session(OWNER)))
# To be compiled before the first turn.
OF_EVERY_TURN = (
    LOCK_CHAT,
    READ_CHAT,
    ADD_MESSAGE,
    ADD_TURN,
    ADD_LIVE_TURN,
    TOUCH_CHAT,
    NAME_CHAT,
    END_TURN,
    REMOVE_LIVE_TURN,
    REMOVE_TITLE,
)
