"""Many chats of a user are deleted, some at a time: because they are too old, or with all the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import ColumnElement, and_, bindparam, func, literal_column, select

from agentapp.guardrails.cell import Key
from agentapp.isolation import UserScope
from agentapp.storage.cells import CellStore
from agentapp.storage.db import Database
from agentapp.storage.locks import lock_user
from agentapp.storage.models import ChatSession, Turn, User
from agentapp.storage.owned import OWNER, owned_by
from agentapp.storage.statements import Statement
from agentapp.storage.turn_statements import DELETE_CHAT

MOST_USERS = 1000  # looked up at once
ALL = 2**31

_BEFORE: ColumnElement[datetime] = bindparam("before", type_=ChatSession.updated_at.type)
_IS_OLD = and_(ChatSession.updated_at < _BEFORE, ChatSession.pinned_at.is_(None))
_RUNS = select(Turn.session_id).where(
    # Not a parameter: SQLite would not use the index of the running turns, which is an index of this word.
    owned_by(OWNER, Turn),
    Turn.status == literal_column("'running'"),
)
_QUIET = (
    select(ChatSession.id)
    .where(owned_by(OWNER, ChatSession), ChatSession.id.not_in(_RUNS))
    .order_by(ChatSession.id)
    .limit(bindparam("most"))
    # Who has locked one is just writing to it. Only these rows are locked, and none is waited for: whoever
    # begins a turn locks one chat and then the user.
    .with_for_update(skip_locked=True, key_share=True)
)
QUIET_CHATS, OLD_CHATS = Statement(_QUIET), Statement(_QUIET.where(_IS_OLD))
CHATS_LEFT = Statement(select(ChatSession.id).where(owned_by(OWNER, ChatSession)).limit(MOST_USERS))
_OF_USER = and_(
    ChatSession.tenant_id == User.tenant_id, ChatSession.user_id == User.id, ChatSession.id.not_in(
        select(Turn.session_id).where(
            Turn.tenant_id == User.tenant_id,
            Turn.user_id == User.id,
            Turn.status == literal_column("'running'"),
        )
    )
)  # fmt: skip
_OF_TENANT = User.tenant_id == bindparam("tenant")
USERS_WITH_OLD_CHATS = Statement(
    select(User.id)
    .where(_OF_TENANT, User.id > bindparam("after"))
    .where(select(ChatSession.id).where(_OF_USER, _IS_OLD).exists())
    .order_by(User.id)
    .limit(MOST_USERS)
)
_OLD_OF_TENANT = (
    select(ChatSession.id).select_from(User).join(ChatSession, _OF_USER).where(_OF_TENANT, _IS_OLD)
)
COUNT_OLD_CHATS = Statement(
    select(func.count()).select_from(_OLD_OF_TENANT.limit(bindparam("most")).subquery())
)
COUNT_CHATS = Statement(select(func.count()).select_from(ChatSession).where(owned_by(OWNER, ChatSession)))


class ChatRemoval:
    def __init__(self, db: Database, cells: CellStore) -> None:
        self._db, self._cells = db, cells

    def remove_quiet(self, scope: UserScope, most: int, *, before: datetime | None = None) -> int:
        """Delete some of the user's chats in which no turn runs, with their cells; with ``before`` only those
        that were not used since and are not pinned. How many there were: 0 if none is left, or if somebody is
        just writing to those that are.
        """
        own = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
        statement, values = (QUIET_CHATS, {}) if before is None else (OLD_CHATS, {"before": before})
        with self._db.transaction(scope.tenant_id) as db:
            found = [row[0] for row in db.run(statement, {**own, **values, "most": most}).all()]
            if found:
                if db.dialect != "sqlite":  # there, the whole transaction is one lock
                    lock_user(db, scope)
                db.run_many(DELETE_CHAT, [{**own, "own_session": session_id} for session_id in found])
                rows = self._cells.rows(db)
                for session_id in found:
                    rows.remove(Key("session", session_id))
        return len(found)

    def left(self, scope: UserScope) -> list[str]:
        """Ids of chats that the user still has."""
        own = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
        return [row[0] for row in self._db.look(CHATS_LEFT, own)]

    def users_with_old_chats(self, tenant_id: str, before: datetime) -> Iterator[str]:
        after = ""
        while found := self._db.look(
            USERS_WITH_OLD_CHATS, {"tenant": tenant_id, "before": before, "after": after}
        ):
            yield from (row[0] for row in found)
            after = found[-1][0]

    def count_old(self, tenant_id: str, before: datetime, most: int = ALL) -> int:
        """How many a clean-up would delete, counted to ``most``."""
        values = {"tenant": tenant_id, "before": before, "most": most}
        ((count,),) = self._db.look(COUNT_OLD_CHATS, values)
        return int(count)

    def count(self, scope: UserScope) -> int:
        """How many chats the user has."""
        own = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
        ((count,),) = self._db.look(COUNT_CHATS, own)
        return int(count)
