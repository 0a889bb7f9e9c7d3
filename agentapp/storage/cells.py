"""The rows of the guardrails' cells: read and written inside a transaction that locks them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Connection, and_, delete, select, tuple_
from sqlalchemy.orm import Session, aliased

from agentapp.guardrails.cell import Key
from agentapp.guardrails.operator import StoredCell
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, GuardrailCell, Tenant, User
from agentapp.storage.names import normalise_name

TABLE = GuardrailCell.__tablename__
COLUMNS = ("scope", "id", "state", "mark", "updated_at")


class CellStore:
    """A `guardrails.registry.Store`, and also the store that operators and sign-in need.

    Some of its statements are plain SQL for the driver. Every turn runs four of them, and building them with
    SQLAlchemy took longer than all decisions of the guardrails.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._locks_rows = db.engine.dialect.name != "sqlite"  # On SQLite the whole transaction is one lock.
        parameter = "%s" if self._locks_rows else "?"  # as the driver writes it
        self._match_key = f"(scope = {parameter} AND id = {parameter})"
        values = ", ".join([parameter] * len(COLUMNS))
        insert = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({values})"  # noqa: S608 - names of our own
        self._claim = f"{insert} ON CONFLICT DO NOTHING"
        changed = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[2:])
        self._upsert = f"{insert} ON CONFLICT (scope, id) DO UPDATE SET {changed}"

    @contextmanager
    def transaction(self) -> Iterator[CellRows]:
        with self._db.writing() as db:
            yield self.rows(db)

    def rows(self, db: Session) -> CellRows:
        """The rows as part of an open transaction."""
        return CellRows(self, db.connection())

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        with self._db.reading() as db:
            return self._select_states(db.connection(), keys, lock=False)

    def release(self) -> None:
        self._db.release()

    def listed(self, *, everything: bool = False) -> Iterator[StoredCell]:
        """The cells that have a mark, or all of them. They are read a few at a time."""
        cell, owner = GuardrailCell, aliased(User)
        owner_name = select(owner.name).where(ChatSession.id == cell.id, _owned_by(owner)).scalar_subquery()
        query = (
            select(cell.scope, cell.id, cell.state, cell.updated_at, User.name, Tenant.name, owner_name)
            .outerjoin(User, and_(cell.scope == "user", User.id == cell.id))
            .outerjoin(Tenant, and_(cell.scope == "tenant", Tenant.id == cell.id))
        )
        if not everything:
            # Ordered first by the column of the index, because otherwise SQLite reads the whole table.
            query = query.where(cell.mark != "").order_by(cell.mark.desc())
        query = query.order_by(cell.scope, cell.updated_at.desc(), cell.id)
        with self._db.reading() as db:
            for scope, id, state, updated_at, *names in db.execute(query.execution_options(yield_per=1000)):
                user, tenant, session_owner = names
                name = session_owner if scope == "session" else user or tenant
                yield StoredCell(Key(scope, id), name or "", state, updated_at)

    def key_of(self, scope: str, name: str) -> Key | None:
        """The key of the session, user or tenant with that id. Users and tenants are found by name too.

        None if there is none, and no cell that a deleted one has left.
        """
        with self._db.reading() as db:
            ids: list[str] = []
            if scope == "session":
                ids += db.scalars(select(ChatSession.id).where(ChatSession.id == name, _owned_by(User)))
            for table, its_scope in ((User, "user"), (Tenant, "tenant")):
                if scope == its_scope:
                    ids += db.scalars(select(table.id).where(table.id == name))
                    ids += db.scalars(select(table.id).where(table.name == normalise_name(name)))
            if not ids and db.get(GuardrailCell, (scope, name)) is not None:
                ids.append(name)
            return Key(scope, ids[0]) if ids else None

    def forget(self, scopes: Sequence[str], before: float) -> None:
        """Remove the cells of these scopes that were not changed since then, except those that are locked."""
        cell = GuardrailCell
        old = select(cell.scope, cell.id).where(cell.scope.in_(scopes), cell.updated_at < before)
        with self._db.writing() as db:
            found = [tuple(row) for row in db.execute(old.limit(1000).with_for_update(skip_locked=True))]
            if found:
                db.execute(delete(cell).where(tuple_(cell.scope, cell.id).in_(found)))

    def _select_states(self, connection: Connection, keys: Sequence[Key], *, lock: bool) -> dict[Key, str]:
        match_keys = " OR ".join([self._match_key] * len(keys))
        query = f"SELECT scope, id, state FROM {TABLE} WHERE {match_keys}"  # noqa: S608 - names of our own
        if lock:
            # The lock order: always the same, because otherwise two transactions could wait for each other.
            # The provider's row, which every turn needs, comes last and so is held for the shortest time.
            query += " ORDER BY scope DESC, id FOR UPDATE"
        found = connection.exec_driver_sql(query, tuple(part for key in keys for part in key))
        return {Key(scope, id): state for scope, id, state in found}


class CellRows:
    """The rows as one transaction sees them: a `guardrails.registry.Rows`."""

    def __init__(self, store: CellStore, connection: Connection) -> None:
        self._store, self._connection = store, connection

    def read(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        store, connection = self._store, self._connection
        found = store._select_states(connection, keys, lock=False)
        if not store._locks_rows:
            return found
        while True:
            self._claim([key for key in keys if key not in found])
            found = store._select_states(connection, keys, lock=True)
            if all(key in found for key in keys):  # No other transaction removed one in between.
                return found

    def _claim(self, missing: list[Key]) -> None:
        """Make the rows that do not exist, because only an existing row can be locked.

        The first transaction inserts an empty row. The others wait here until the first one has ended.
        No row is locked before this step: a transaction that holds one row while it inserts another could
        meet one that does the opposite, and each would wait for the other.
        """
        if missing:
            missing.sort(key=lambda key: key.id)
            missing.sort(
                key=lambda key: key.scope, reverse=True
            )  # This is the lock order of `_select_states`.
            rows = [_row(key, "{}", "") for key in missing]
            self._connection.exec_driver_sql(self._store._claim, rows)

    def write(self, rows: Sequence[tuple[Key, str, str]]) -> None:
        if rows:
            self._connection.exec_driver_sql(self._store._upsert, [_row(*row) for row in rows])

    def remove(self, key: Key) -> None:
        self._connection.execute(
            delete(GuardrailCell).where(GuardrailCell.scope == key.scope, GuardrailCell.id == key.id)
        )


def _row(key: Key, text: str, mark: str) -> tuple[str, str, str, str, float]:
    return (*key, text, mark, time.time())


def _owned_by(user: type[User]) -> ColumnElement[bool]:
    """Joins every session to its owner. Operators see who the owner is, and nothing of the content."""
    return and_(ChatSession.user_id == user.id, ChatSession.tenant_id == user.tenant_id)
