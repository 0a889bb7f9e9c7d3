"""Where changed limits are found: in the cells of users and tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import and_, func, or_, select

from agentapp.guardrails.cell import LIMITED, Key
from agentapp.guardrails.limit_admin import LimitChange, LimitOwner
from agentapp.isolation import RequestScope
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry
from agentapp.storage.cells import IS_MARKED, CellRows, CellStore
from agentapp.storage.db import Database
from agentapp.storage.hot_cells import SeenCells
from agentapp.storage.models import GuardrailCell, Tenant, User
from agentapp.storage.names import normalise_name
from agentapp.storage.statements import DriverConnection

MARKS_WITH_LIMITS = (LIMITED, "failing", "forced", "open")  # what a breaker has to tell goes first
HAS_LIMITS = GuardrailCell.state.contains('"limits":')


class SqlLimitRows(CellRows):
    """The rows as one transaction sees them: a `guardrails.limit_admin.LimitRows`."""

    def __init__(self, store: CellStore, db: DriverConnection, seen: SeenCells | None) -> None:
        super().__init__(store, db, seen)
        self._driver = db

    def record(self, change: LimitChange, by: RequestScope) -> None:
        owner = change.owner
        detail = {"limit": change.limit, "from": change.was, "to": change.now}
        entry = AuditEntry.of(by, "limit-changed", f"{owner.key.scope}:{owner.key.id}", **detail)
        values = replace(entry, tenant_id=owner.tenant_id).values(self._driver.clock.utc_now())
        self._driver.run_later(ADD_ENTRY, values)


class SqlLimitStore:
    """A `guardrails.limit_admin.LimitStore`."""

    def __init__(self, db: Database, cells: CellStore) -> None:
        self._db, self._cells = db, cells

    @contextmanager
    def transaction(self) -> Iterator[SqlLimitRows]:
        with self._cells.kept_hot() as seen, self._db.transaction() as db:
            yield SqlLimitRows(self._cells, db, seen)

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        return self._cells.look(keys)

    def owner(self, scope: str, name: str, tenant_id: str | None) -> LimitOwner | None:
        table = User if scope == "user" else Tenant
        its_tenant = User.tenant_id if scope == "user" else Tenant.id
        query = (
            select(table.id, table.name, its_tenant, GuardrailCell.state)
            .outerjoin(GuardrailCell, and_(GuardrailCell.scope == scope, GuardrailCell.id == table.id))
            .where(or_(table.id == name, table.name == normalise_name(name)))
            .order_by(table.id != name)
        )
        if tenant_id is not None:
            query = query.where(func.coalesce(its_tenant, "") == tenant_id)
        with self._db.reading() as db:
            found = db.execute(query.limit(1)).first()
        return None if found is None else LimitOwner(Key(scope, found[0]), found[1], found[2], found[3] or "")

    def limited_users(self, tenant_id: str | None, after: str, count: int) -> list[LimitOwner]:
        """They are found by the index of the cells that have a mark, which are few. Of users no index can be
        used but that of ids: SQLite would read all users, in the order of their names.
        """
        cell, name = GuardrailCell, func.coalesce(User.name, "")
        query = (
            select(User.id, User.name, User.tenant_id, cell.state)
            .join(cell, and_(cell.scope == "user", cell.id == User.id))
            .where(IS_MARKED, cell.mark.in_(MARKS_WITH_LIMITS), HAS_LIMITS, name > after)
            .order_by(name)
            .limit(count)
        )
        if tenant_id is not None:
            query = query.where(func.coalesce(User.tenant_id, "") == tenant_id)
        with self._db.reading() as db:
            return [LimitOwner(Key("user", row[0]), *row[1:]) for row in db.execute(query)]

    def tenants(self, tenant_id: str | None, after: str, count: int) -> list[LimitOwner]:
        query = (
            select(Tenant.id, Tenant.name, GuardrailCell.state)
            .outerjoin(GuardrailCell, and_(GuardrailCell.scope == "tenant", GuardrailCell.id == Tenant.id))
            .where(Tenant.name > after)
            .order_by(Tenant.name)
            .limit(count)
        )
        if tenant_id is not None:
            query = query.where(Tenant.id == tenant_id)
        with self._db.reading() as db:
            return [
                LimitOwner(Key("tenant", id), name, id, state or "") for id, name, state in db.execute(query)
            ]
