"""Accounts as admins and operators see and change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from agentapp.errors import BadRequest, Forbidden, NotFound
from agentapp.isolation import UserScope
from agentapp.storage import user_changes
from agentapp.storage.db import Database
from agentapp.storage.models import Login, Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.names import check_name, normalise_name
from agentapp.storage.operator_models import UsageDay
from agentapp.storage.passwords import check_password, new_password
from agentapp.storage.user_changes import user_of_row
from agentapp.storage.user_rules import check_may_change, check_may_give
from agentapp.storage.values import Role, User

NO_SUCH_USER = "There is no such user."
LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class UserFacts:
    """``seen_at`` is when one of the user's logins was used last; None if there is none now."""

    user: User
    created_at: datetime
    stored_bytes: int
    logins: int
    seen_at: datetime | None
    used_today_microusd: int


@dataclass(frozen=True, slots=True)
class NewPassword:
    """``text`` is shown once; only its hash is stored."""

    user: User
    text: str


class UserAdmin:
    """Whoever changes something is looked up in the same transaction: what somebody may do who has just been
    demoted is not done any more.
    """

    def __init__(self, db: Database, hash_password: Callable[[str], str]) -> None:
        self._db, self._hash = db, hash_password

    def listed(
        self, tenant_id: str | None, today: date, beginning: str, after: str, count: int
    ) -> Sequence[UserFacts]:
        """Those whose name begins so, by name, after that name; None is all tenants'."""
        first = normalise_name(beginning)
        query = (
            _facts(self._db.clock.utc_now(), today, tenant_id)
            .where(UserRow.name > after)
            .order_by(UserRow.name)
            .limit(count)
        )
        if first:
            query = query.where(UserRow.name >= first, UserRow.name < first + LAST_CHARACTER)
        with self._db.reading() as db:
            return [_facts_of(*row) for row in db.execute(query)]

    def find(self, tenant_id: str | None, user_id: str, today: date) -> UserFacts:
        with self._db.reading() as db:
            found = db.execute(
                _facts(self._db.clock.utc_now(), today, tenant_id).where(UserRow.id == user_id)
            ).one_or_none()
        if found is None:
            raise NotFound(NO_SUCH_USER)
        return _facts_of(*found)

    def add(self, by: UserScope, name: str, role: Role, tenant: str) -> NewPassword:
        """With a password that the user has to change. ``tenant`` counts only if an operator adds it."""
        clean, password = check_name(name, "user"), new_password()
        hashed = self._hash(password)
        try:
            with self._changing(by) as (db, actor):
                check_may_give(actor, role)
                theirs = check_name(tenant, "tenant") if actor.role == "operator" else actor.tenant
                made = user_changes.add_user(db, by, clean, hashed, theirs, role, given=True)
        except IntegrityError as exc:
            raise BadRequest(f"There is already a user {clean!r}.") from exc
        return NewPassword(made, password)

    def change_role(self, by: UserScope, user_id: str, role: Role) -> None:
        with self._changing(by) as (db, actor):
            row = _row(db, actor, user_id)
            check_may_give(actor, role)
            user_changes.change_role(db, by, row, role)

    def disable(self, by: UserScope, user_id: str) -> None:
        with self._changing(by) as (db, actor):
            user_changes.disable(db, by, _row(db, actor, user_id))

    def enable(self, by: UserScope, user_id: str) -> None:
        with self._changing(by) as (db, actor):
            user_changes.enable(db, by, _row(db, actor, user_id))

    def end_logins(self, by: UserScope, user_id: str) -> int:
        with self._changing(by) as (db, actor):
            return user_changes.end_logins(db, by, _row(db, actor, user_id))

    def reset_password(self, by: UserScope, user_id: str) -> NewPassword:
        """To one that the user has to change."""
        password = new_password()
        hashed = self._hash(password)
        with self._changing(by) as (db, actor):
            row = _row(db, actor, user_id)
            check_password(password, row.name)
            user_changes.set_password(db, by, row, hashed, given=True)
            return NewPassword(user_of_row(row, ""), password)

    @contextmanager
    def _changing(self, by: UserScope) -> Iterator[tuple[Session, User]]:
        """A transaction, and who does it as that person is now."""
        with self._db.writing() as db:
            user_changes.lock_accounts(db)
            found = db.execute(_users().where(UserRow.id == by.user_id)).one_or_none()
            actor = user_of_row(*found) if found else None
            if actor is None or actor.disabled or actor.role not in ("admin", "operator"):
                raise Forbidden("This is for admins.")
            yield db, actor


def _row(db: Session, actor: User, user_id: str) -> UserRow:
    """The account that is to be changed, if the actor sees it and may change it."""
    query = _users(None if actor.role == "operator" else actor.tenant_id).where(UserRow.id == user_id)
    found = db.execute(query.with_for_update(of=UserRow)).one_or_none()
    if found is None:
        raise NotFound(NO_SUCH_USER)
    check_may_change(actor, user_of_row(*found))
    return found[0]


def _users(tenant_id: str | None = None) -> Select[UserRow, str]:
    query = select(UserRow, Tenant.name).join(Tenant, Tenant.id == UserRow.tenant_id)
    return query if tenant_id is None else query.where(UserRow.tenant_id == tenant_id)


def _facts(
    now: datetime, today: date, tenant_id: str | None
) -> Select[UserRow, str, datetime, int, int, datetime, int]:
    """With subqueries, so that users are read by the index of their names, and no more than are shown."""
    tenant = select(Tenant.name).where(Tenant.id == UserRow.tenant_id).scalar_subquery()
    live = Login.user_id == UserRow.id, Login.expires_at > now
    logins = select(func.count()).select_from(Login).where(*live).scalar_subquery()
    seen = select(func.max(func.coalesce(Login.seen_at, Login.created_at))).where(*live).scalar_subquery()
    used = select(func.coalesce(func.sum(UsageDay.cost_microusd), 0)).where(
        UsageDay.tenant_id == UserRow.tenant_id,
        UsageDay.user_id == UserRow.id,
        UsageDay.day == today.isoformat(),
    )
    facts = UserRow.created_at, UserRow.stored_bytes, logins, seen, used.scalar_subquery()
    query = select(UserRow, tenant, *facts)
    return query if tenant_id is None else query.where(UserRow.tenant_id == tenant_id)


def _facts_of(
    row: UserRow,
    tenant: str,
    created_at: datetime,
    stored_bytes: int,
    logins: int,
    seen_at: datetime | None,
    used_today: int,
) -> UserFacts:
    return UserFacts(user_of_row(row, tenant), created_at, stored_bytes, logins, seen_at, int(used_today))
