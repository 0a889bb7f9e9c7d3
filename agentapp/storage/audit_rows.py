"""The audit log as it is read: the newest rows first, those that a filter lets through, a page at a time.

The narrowest condition of a filter is found by its index, which also has the order of the rows. The others
are looked at row by row, and are written so that no database takes the index of one of them instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from agentapp.storage.db import Database
from agentapp.storage.models import Tenant, User
from agentapp.storage.names import normalise_name
from agentapp.storage.operator_models import AuditRow

PIECE_ROWS = 1_000
OF_A_USER = "user:"  # how a subject begins that is a user
AN_OPERATOR = "an operator"  # what the admins of other tenants are told of one
COLUMNS = (
    AuditRow.id,
    AuditRow.at,
    AuditRow.tenant_id,
    AuditRow.user_id,
    AuditRow.action,
    AuditRow.subject,
    AuditRow.request_id,
    AuditRow.detail,
)


class Place(NamedTuple):
    """Of a row, in the order in which they are read."""

    at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """All that is given must hold. ``tenant_id`` is whose rows may be seen; None is everybody's."""

    tenant_id: str | None
    action: str = ""
    user_id: str = ""
    subject: str = ""
    request_id: str = ""
    first_day: date | None = None
    last_day: date | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        narrow = _given(
            (AuditRow.request_id, self.request_id),
            (AuditRow.user_id, self.user_id),
            (AuditRow.subject, self.subject),
        )
        broad = _given((AuditRow.tenant_id, self.tenant_id), (AuditRow.action, self.action))
        indexed, others = (narrow[:1], narrow[1:] + broad) if narrow else (broad, [])
        found = [column == value for column, value in indexed]
        found += [column.concat("") == value for column, value in others]
        if self.first_day is not None:
            found.append(AuditRow.at >= _midnight(self.first_day))
        if self.last_day is not None and self.last_day < date.max:
            found.append(AuditRow.at < _midnight(self.last_day) + timedelta(days=1))
        return found


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A row with the names that its users and its tenant have now; no name if they were erased, and no id if
    they are not for the reader.
    """

    id: int
    at: datetime
    action: str
    tenant: str
    user_id: str
    user: str
    subject: str
    subject_user: str
    request_id: str
    detail: Mapping[str, Any]

    @property
    def place(self) -> Place:
        return Place(self.at, self.id)


class AuditRows:
    def __init__(self, db: Database) -> None:
        self._db = db

    def page(self, wanted: AuditFilter, after: Place | None, count: int) -> Sequence[AuditRecord]:
        query = _newest_first(wanted, after).limit(count)
        with self._db.reading() as db:
            rows = db.execute(query).all()
            return _with_names(db, rows, wanted.tenant_id)

    def pieces(self, wanted: AuditFilter) -> Iterator[Sequence[AuditRecord]]:
        """All of them. No connection is held between two pieces if a scope is bound around each pull."""
        after: Place | None = None
        while piece := self.page(wanted, after, PIECE_ROWS):
            yield piece
            after = piece[-1].place

    def user_id(self, text: str, tenant_id: str | None) -> str | None:
        """Of the user with this id or name, in this tenant if one is given."""
        query = select(User.id).where(or_(User.id == text, User.name == normalise_name(text)))
        if tenant_id is not None:
            query = query.where(User.tenant_id == tenant_id)
        with self._db.reading() as db:
            return db.scalar(query.order_by(User.id != text).limit(1))

    def tenant_id(self, text: str) -> str | None:
        query = select(Tenant.id).where(or_(Tenant.id == text, Tenant.name == normalise_name(text)))
        with self._db.reading() as db:
            return db.scalar(query.order_by(Tenant.id != text).limit(1))


def _given(
    *pairs: tuple[InstrumentedAttribute[Any], str | None],
) -> list[tuple[InstrumentedAttribute[Any], str]]:
    return [(column, value) for column, value in pairs if value]


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _newest_first(wanted: AuditFilter, after: Place | None) -> Select[Any]:
    query = select(*COLUMNS).where(*wanted.conditions())
    if after is not None:
        query = query.where(tuple_(AuditRow.at, AuditRow.id) < tuple_(*after))
    return query.order_by(AuditRow.at.desc(), AuditRow.id.desc())


def _with_names(db: Session, rows: Sequence[Row[Any]], reader: str | None) -> list[AuditRecord]:
    subjects = {row.subject.removeprefix(OF_A_USER) for row in rows if row.subject.startswith(OF_A_USER)}
    ids = subjects | {row.user_id for row in rows if row.user_id}
    tenant_ids = {row.tenant_id for row in rows if row.tenant_id}
    asked = select(User.id, User.name, User.tenant_id).where(User.id.in_(ids))
    users = {id: (name, tenant_id) for id, name, tenant_id in db.execute(asked)} if ids else {}
    named = select(Tenant.id, Tenant.name).where(Tenant.id.in_(tenant_ids))
    tenants = {row.id: row.name for row in db.execute(named)} if tenant_ids else {}
    return [_record(row, users, tenants, reader) for row in rows]


def _record(
    row: Row[Any],
    users: Mapping[str, tuple[str, str]],
    tenants: Mapping[str, str],
    reader: str | None,
) -> AuditRecord:
    """``reader`` is the tenant of who reads, who is not told names of others."""

    def known(user_id: str) -> tuple[str, str]:
        name, tenant_id = users.get(user_id, ("", reader))
        return (user_id, name) if reader in (None, tenant_id) else ("", AN_OPERATOR)

    user_id, user = known(row.user_id or "")
    subject, subject_user = row.subject, ""
    if subject.startswith(OF_A_USER):
        subject_id, subject_user = known(subject.removeprefix(OF_A_USER))
        subject = OF_A_USER + subject_id if subject_id else ""
    return AuditRecord(
        id=row.id,
        at=row.at,
        action=row.action,
        tenant=tenants.get(row.tenant_id, row.tenant_id or ""),
        user_id=user_id,
        user=user,
        subject=subject,
        subject_user=subject_user,
        request_id=row.request_id,
        detail=row.detail,
    )
