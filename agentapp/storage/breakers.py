"""The breakers as those see them who look after the server: lists, whose each is, changes with audit rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select
from sqlalchemy.orm import aliased

from agentapp.guardrails.cell import LIMITED, Key
from agentapp.guardrails.operator import Change, ForcedBy, Mark, StoredCell
from agentapp.isolation import RequestScope
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry
from agentapp.storage.cells import IS_MARKED, CellRows, CellStore
from agentapp.storage.db import Database
from agentapp.storage.hot_cells import SeenCells
from agentapp.storage.models import ChatSession, GuardrailCell, LiveTurn, Tenant, User
from agentapp.storage.names import normalise_name
from agentapp.storage.operator_models import AuditRow
from agentapp.storage.statements import DriverConnection

IN_ORDER = ("provider", "tenant", "user", "session")  # those that concern most people come first
NOBODYS: ColumnElement[Any] = literal_column("NULL")


class SqlBreakerRows(CellRows):
    """The rows as one transaction sees them: a `guardrails.operator.BreakerRows`."""

    def __init__(self, store: CellStore, db: DriverConnection, seen: SeenCells | None) -> None:
        super().__init__(store, db, seen)
        self._driver = db

    def record(self, change: Change, by: RequestScope) -> None:
        detail = {"from": change.was, "to": change.now}
        if change.reason:
            detail["reason"] = change.reason
        entry = AuditEntry.of(by, change.action, subject_of(change.key), **detail)
        values = replace(entry, tenant_id=change.tenant_id).values(self._driver.clock.utc_now())
        self._driver.run_later(ADD_ENTRY, values)


class SqlBreakerStore:
    """A `guardrails.operator.BreakerStore`."""

    def __init__(self, db: Database, cells: CellStore) -> None:
        self._db, self._cells = db, cells

    @contextmanager
    def transaction(self) -> Iterator[SqlBreakerRows]:
        with self._cells.kept_hot() as seen, self._db.transaction() as db:
            yield SqlBreakerRows(self._cells, db, seen)

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        return self._cells.look(keys)

    def listed(self, *, everything: bool = False) -> Iterator[StoredCell]:
        """The cells whose breakers have a mark, or all of them. They are read a few at a time."""
        cell, owner = GuardrailCell, aliased(User)
        owner_name = select(owner.name).where(ChatSession.id == cell.id, _owned_by(owner)).scalar_subquery()
        query = (
            select(cell.scope, cell.id, cell.state, cell.updated_at, User.name, Tenant.name, owner_name)
            .outerjoin(User, and_(cell.scope == "user", User.id == cell.id))
            .outerjoin(Tenant, and_(cell.scope == "tenant", Tenant.id == cell.id))
        )
        if not everything:
            # Ordered first by the column of the index, because otherwise SQLite reads the whole table.
            query = query.where(IS_MARKED, cell.mark != LIMITED).order_by(cell.mark.desc())
        query = query.order_by(cell.scope, cell.updated_at.desc(), cell.id)
        with self._db.reading() as db:
            running = db.scalar(select(func.count()).select_from(LiveTurn)) or 0
            for scope, id, state, updated_at, *names in db.execute(query.execution_options(yield_per=1000)):
                user, tenant, session_owner = names
                name = session_owner if scope == "session" else user or tenant
                yield StoredCell(
                    Key(scope, id), name or "", state, updated_at, running if scope == "provider" else 0
                )

    def page(self, mark: Mark, tenant_id: str | None, after: Key | None, count: int) -> list[StoredCell]:
        """Each scope is a range of the index, read from where the page begins."""
        cell, found = GuardrailCell, list[StoredCell]()
        begin = IN_ORDER.index(after.scope) if after is not None and after.scope in IN_ORDER else 0
        with self._db.reading() as db:
            for place, scope in enumerate(IN_ORDER[begin:], begin):
                after_id = after.id if after is not None and place == begin else ""
                query = (
                    _cells_of(scope, tenant_id)
                    .where(IS_MARKED, cell.mark == mark, cell.scope == scope, cell.id > after_id)
                    .order_by(cell.id)
                    .limit(count - len(found))
                )
                found += [
                    StoredCell(Key(scope, id), name, state, updated_at, tenant_id=its_tenant)
                    for id, name, state, updated_at, its_tenant in db.execute(query)
                ]
                if len(found) == count:
                    break
        return found

    def find(self, scope: str, name: str, tenant_id: str | None) -> StoredCell | None:
        """The session, user or tenant with that id, and its cell if it has one. Users and tenants are found
        by name too. A cell that a deleted one has left is nobody's.
        """
        with self._db.reading() as db:
            owner = None
            if scope in _OWNERS:
                owner = db.execute(_OWNERS[scope](name, tenant_id).limit(1)).first()
            if owner is None and tenant_id is not None:
                return None
            id, owner_name, its_tenant = owner or (name, "", None)
            cell = db.get(GuardrailCell, (scope, id))
            if owner is None and cell is None:
                return None
            state, updated_at = ("", 0.0) if cell is None else (cell.state, cell.updated_at)
            return StoredCell(Key(scope, id), owner_name, state, updated_at, 0, its_tenant)

    def forced_by(self, keys: Sequence[Key], tenant_id: str | None) -> Mapping[Key, ForcedBy]:
        """The newest audit row of each. Few breakers are ever forced: the index of actions finds these rows.
        An operator of another tenant has no name for an admin.
        """
        row, newest = AuditRow, func.max(AuditRow.id)
        subjects = {subject_of(key): key for key in keys}
        last = (
            select(newest)
            .where(row.action == "breaker-forced", row.subject.in_(subjects))
            .group_by(row.subject)
        )
        query = (
            select(row.subject, row.at, row.detail, User.name, User.tenant_id)
            .outerjoin(User, User.id == row.user_id)
            .where(row.id.in_(last))
        )
        with self._db.reading() as db:
            return {
                subjects[subject]: ForcedBy(
                    at,
                    name if name and tenant_id in (None, its_tenant) else "",
                    str(detail.get("reason", "")),
                )
                for subject, at, detail, name, its_tenant in db.execute(query)
            }


def subject_of(key: Key) -> str:
    return f"{key.scope}:{key.id}"


def _cells_of(scope: str, tenant_id: str | None) -> Select[Any]:
    """Cells with the name and the tenant of whose they are."""
    cell = GuardrailCell
    match scope:
        case "provider":
            query = select(cell.id, literal_column("''"), cell.state, cell.updated_at, NOBODYS)
            return query if tenant_id is None else query.where(literal_column("1") == literal_column("0"))
        case "tenant":
            query = select(cell.id, Tenant.name, cell.state, cell.updated_at, Tenant.id)
            query, its_tenant = query.where(Tenant.id == cell.id), Tenant.id
        case "user":
            query = select(cell.id, User.name, cell.state, cell.updated_at, User.tenant_id)
            query, its_tenant = query.where(User.id == cell.id), User.tenant_id
        case _:
            query = select(cell.id, User.name, cell.state, cell.updated_at, User.tenant_id)
            query = query.where(ChatSession.id == cell.id, _owned_by(User))
            its_tenant = User.tenant_id
    return _within(query, its_tenant, tenant_id)


def _user(name: str, tenant_id: str | None) -> Select[Any]:
    query: Any = select(User.id, User.name, User.tenant_id).where(_is_called(User, name))
    return _within(query, User.tenant_id, tenant_id).order_by(User.id != name)


def _tenant(name: str, tenant_id: str | None) -> Select[Any]:
    query: Any = select(Tenant.id, Tenant.name, Tenant.id).where(_is_called(Tenant, name))
    return _within(query, Tenant.id, tenant_id).order_by(Tenant.id != name)


def _session(name: str, tenant_id: str | None) -> Select[Any]:
    query: Any = select(ChatSession.id, User.name, User.tenant_id).where(
        ChatSession.id == name, _owned_by(User)
    )
    return _within(query, User.tenant_id, tenant_id)


_OWNERS = MappingProxyType({"user": _user, "tenant": _tenant, "session": _session})


def _is_called(table: type[User] | type[Tenant], name: str) -> ColumnElement[bool]:
    return or_(table.id == name, table.name == normalise_name(name))


def _within(query: Select[Any], column: Any, tenant_id: str | None) -> Select[Any]:
    """The tenant is compared in a way that no index can be used for: SQLite would read all users of a tenant
    rather than the one that is asked for, or the few cells with a mark.
    """
    return query if tenant_id is None else query.where(func.coalesce(column, "") == tenant_id)


def _owned_by(user: type[User]) -> ColumnElement[bool]:
    """Joins every session to its owner. Operators see who the owner is, and nothing of the content."""
    return and_(ChatSession.user_id == user.id, ChatSession.tenant_id == user.tenant_id)
