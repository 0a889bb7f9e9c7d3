"""What is done to an account, each as part of a transaction and with its entry in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from agentapp.errors import Forbidden
from agentapp.isolation import RequestScope, new_id
from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.clock import now_in
from agentapp.storage.models import Login, Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.names import check_new_name, lengths_of_lookalikes
from agentapp.storage.values import Role, User

NO_OTHER_OPERATOR = "This is the last operator. Without one nobody could look after the server."
_ACCOUNTS_LOCK_KEY = 0x6E616D6573  # an arbitrary number of our own


def lock_accounts(db: Session) -> None:
    """Until the transaction ends nobody else adds accounts or changes them: two names that look the same must
    not be added at the same moment, nor two operators disable each other. On SQLite there is one writer.
    """
    if db.connection().dialect.name == "postgresql":
        db.execute(text(f"SELECT pg_advisory_xact_lock({_ACCOUNTS_LOCK_KEY})"))


def add_user(
    db: Session, by: RequestScope, name: str, hashed: str, tenant: str, role: Role, *, given: bool = False
) -> User:
    """``given`` if the user is to choose another password at the first sign-in. The tenant is made if new."""
    lock_accounts(db)
    tenant_row = db.scalar(select(Tenant).where(Tenant.name == tenant))
    if tenant_row is None:
        check_new_name(tenant, "tenant", _possible_lookalikes(db, Tenant, tenant))
        tenant_row = Tenant(id=new_id(), name=tenant, created_at=now_in(db))
        db.add(tenant_row)
        db.flush()
    check_new_name(name, "user", _possible_lookalikes(db, UserRow, name))
    now = now_in(db)
    row = UserRow(
        id=new_id(), tenant_id=tenant_row.id, name=name, password_hash=hashed, role=role, created_at=now
    )
    row.password_given_at = now if given else None
    db.add(row)
    db.flush()
    _record(db, by, "user-added", row, role=role)
    return user_of_row(row, tenant)


def change_role(db: Session, by: RequestScope, row: UserRow, role: Role) -> None:
    if row.role == role:
        return
    require_other_operator(db, row)
    was, row.role = row.role, role
    _record(db, by, "role-changed", row, **{"from": was, "to": role})


def disable(db: Session, by: RequestScope, row: UserRow) -> None:
    """Also ends every login of the user: pages are refused at once, and running streams end."""
    if row.disabled_at is not None:
        return
    require_other_operator(db, row)
    row.disabled_at = now_in(db)
    _record(db, by, "user-disabled", row, logins=_end_logins(db, row))


def enable(db: Session, by: RequestScope, row: UserRow) -> None:
    if row.disabled_at is None:
        return
    row.disabled_at = None
    _record(db, by, "user-enabled", row)


def end_logins(db: Session, by: RequestScope, row: UserRow) -> int:
    """How many there were."""
    ended = _end_logins(db, row)
    if ended:
        _record(db, by, "logins-ended", row, count=ended)
    return ended


def set_password(db: Session, by: RequestScope, row: UserRow, hashed: str, *, given: bool = False) -> None:
    """Also ends every login of the user, so that somebody who knew the old password is signed out."""
    row.password_hash = hashed
    row.password_given_at = now_in(db) if given else None
    _record(db, by, "password-reset", row, logins=_end_logins(db, row))


def require_other_operator(db: Session, row: UserRow) -> None:
    """Before an operator stops being one. The caller has locked the accounts."""
    if row.role != "operator" or row.disabled_at is not None:
        return
    others = UserRow.role == "operator", UserRow.disabled_at.is_(None), UserRow.id != row.id
    if db.scalar(select(UserRow.id).where(*others).limit(1)) is None:
        raise Forbidden(NO_OTHER_OPERATOR)


def user_of_row(row: UserRow, tenant: str) -> User:
    given = row.password_given_at is not None
    disabled = row.disabled_at is not None
    return User(row.id, row.tenant_id, tenant, row.name, row.role, disabled, given)  # type: ignore[arg-type]


def _record(db: Session, by: RequestScope, action: str, row: UserRow, **detail: object) -> None:
    """For the admins of the user's tenant, whoever did it."""
    entry = AuditEntry.of(by, action, f"user:{row.id}", **detail)
    add_entry(db, replace(entry, tenant_id=row.tenant_id))


def _end_logins(db: Session, row: UserRow) -> int:
    return len(db.scalars(delete(Login).where(Login.user_id == row.id).returning(Login.digest)).all())


def _possible_lookalikes(db: Session, table: type[Tenant] | type[UserRow], name: str) -> Sequence[str]:
    return db.scalars(
        select(table.name).where(func.length(table.name).between(*lengths_of_lookalikes(name)))
    ).all()
