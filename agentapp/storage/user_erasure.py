"""The rows of a user who is erased: what there is, and how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session

from agentapp.errors import NotFound
from agentapp.guardrails import new_chats
from agentapp.guardrails.cell import Key
from agentapp.guardrails.sign_in import keys_of_name
from agentapp.isolation import RequestScope, UserScope
from agentapp.retention.erasing import UserToErase
from agentapp.storage.audit_log import AuditEntry, AuditLog, add_entry
from agentapp.storage.clock import now_in
from agentapp.storage.db import Database
from agentapp.storage.models import (
    ChargedTurn,
    ChatSession,
    GuardrailCell,
    LiveTurn,
    Login,
    Message,
    Note,
    SearchEntry,
    Turn,
    TurnEvents,
    User,
)
from agentapp.storage.names import normalise_name
from agentapp.storage.operator_models import AlertRow, UsageDay
from agentapp.storage.owned import owned_by
from agentapp.storage.user_changes import lock_accounts, require_other_operator

NOBODY = ""  # the user of usage that was an erased user's
_SUMS = ("turns", "model_calls", "input_tokens", "output_tokens", "cost_microusd")
# Those that name their owner, children before their parents.
_OWNED = MappingProxyType(
    {
        table.__tablename__: table
        for table in (TurnEvents, LiveTurn, ChargedTurn, SearchEntry, Note, Message, Turn, ChatSession)
    }
)


class UserErasureStore:
    """A `retention.erasing.UserErasure`, and its `ChatDeletions`."""

    def __init__(self, db: Database) -> None:
        self._db, self._audit_log = db, AuditLog(db)

    def find(self, user_id: str, tenant_id: str | None) -> UserToErase:
        return self._find(User.id == user_id, tenant_id)

    def named(self, name: str) -> UserToErase:
        return self._find(User.name == normalise_name(name), None)

    def shut_out(self, user: UserToErase) -> None:
        with self._db.writing() as db:
            lock_accounts(db)
            row = db.get(User, user.id)
            if row is None:
                raise NotFound("There is no such user.")
            require_other_operator(db, row)
            row.disabled_at = now_in(db)

    def begin(self, user: UserToErase) -> Mapping[str, int]:
        scope = _scope_of(user)
        with self._db.writing() as db:
            counts = {name: _count(db, table, owned_by(scope, table)) for name, table in _OWNED.items()}
            counts["guardrail_cells"] = _count(db, GuardrailCell, _cells_of(user))
            counts["logins"] = _count(db, Login, Login.user_id == user.id)
            counts["alerts"] = _count(db, AlertRow, _alerts_about(user))
            db.execute(delete(AlertRow).where(_alerts_about(user)))
            # Its name goes out of these; the sums of the tenant stay.
            counts["usage_days"] = _count(db, UsageDay, _usage_of(user))
            counts["users"] = 1
            db.execute(delete(Login).where(Login.user_id == user.id))
        return {name: count for name, count in counts.items() if count}

    def remove(self, user: UserToErase, counts: Mapping[str, int], by: RequestScope) -> None:
        scope = _scope_of(user)
        with self._db.writing() as db:
            locked = select(User.id).where(User.id == user.id, User.tenant_id == user.tenant_id)
            if db.scalar(locked.with_for_update()) is None:
                raise NotFound("There is no such user.")
            db.execute(delete(AlertRow).where(_alerts_about(user)))  # of the last moments
            db.execute(delete(GuardrailCell).where(_cells_of(user)))
            for (
                table
            ) in _OWNED.values():  # of a chat that began at the last moment, or a turn that others ended
                db.execute(delete(table).where(owned_by(scope, table)))
            mine = AlertRow.acknowledged_by == user.id
            db.execute(update(AlertRow).where(mine).values(acknowledged_by=None))
            self._keep_sums(db, user)
            db.execute(delete(Login).where(Login.user_id == user.id))
            db.execute(delete(User).where(User.id == user.id, User.tenant_id == user.tenant_id))
            entry = AuditEntry.of(by, "user-erased", f"user:{user.id}", **counts)
            add_entry(db, replace(entry, tenant_id=user.tenant_id))

    def record_deleted(self, scope: UserScope, count: int) -> None:
        self._audit_log.add(AuditEntry.of(scope, "chats-deleted", f"user:{scope.user_id}", count=count))

    def _keep_sums(self, db: Session, user: UserToErase) -> None:
        """What the tenant spent stays what it was, by day, agent and model."""
        key = (UsageDay.day, UsageDay.agent, UsageDay.model)
        sums = [getattr(UsageDay, name) for name in _SUMS]
        mine = (
            select(literal(user.tenant_id), literal(NOBODY), *key, *sums)
            .where(_usage_of(user))
            .order_by(*key)
        )
        columns = ["tenant_id", "user_id", "day", "agent", "model", *_SUMS]
        maker: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._db.engine.dialect.name]
        adding = maker(UsageDay).from_select(columns, mine)
        added = {name: getattr(UsageDay, name) + getattr(adding.excluded, name) for name in _SUMS}
        db.execute(adding.on_conflict_do_update(index_elements=columns[:5], set_=added))
        db.execute(delete(UsageDay).where(_usage_of(user)))

    def _find(self, which: ColumnElement[bool], tenant_id: str | None) -> UserToErase:
        query = select(User.id, User.tenant_id, User.name, User.role).where(which)
        if tenant_id is not None:
            query = query.where(User.tenant_id == tenant_id)
        with self._db.reading() as db:
            found = db.execute(query).one_or_none()
        self._db.release()
        if found is None:
            raise NotFound("There is no such user.")
        return UserToErase(*found)


def _scope_of(user: UserToErase) -> UserScope:
    return UserScope(request_id="erasure", tenant_id=user.tenant_id, user_id=user.id)


def _count(db: Session, table: type[DeclarativeBase], condition: ColumnElement[bool]) -> int:
    return db.scalar(select(func.count()).select_from(table).where(condition)) or 0


def _cells_of(user: UserToErase) -> ColumnElement[bool]:
    cell = GuardrailCell
    own = Key("user", user.id), Key(new_chats.SCOPE, user.id), *keys_of_name(user.name)
    chats = select(ChatSession.id).where(owned_by(_scope_of(user), ChatSession))
    of_chat = and_(cell.scope == "session", cell.id.in_(chats))
    return or_(of_chat, *(and_(cell.scope == key.scope, cell.id == key.id) for key in own))


def _alerts_about(user: UserToErase) -> ColumnElement[bool]:
    """They name the user, or one of the user's chats or turns. There are few alerts."""
    scope = _scope_of(user)
    chats = select("session:" + ChatSession.id).where(owned_by(scope, ChatSession))
    turns = select("turn:" + Turn.id).where(owned_by(scope, Turn))
    named = AlertRow.subject.contains(user.id), AlertRow.detail.contains(user.id)
    return or_(AlertRow.subject.in_(chats), AlertRow.subject.in_(turns), *named)


def _usage_of(user: UserToErase) -> ColumnElement[bool]:
    return and_(UsageDay.tenant_id == user.tenant_id, UsageDay.user_id == user.id)
