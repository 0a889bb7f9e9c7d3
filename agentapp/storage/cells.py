"""The rows of the guardrails' cells: read and written inside a transaction, each by one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Executable, Select, and_, bindparam, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from agentapp.guardrails.cell import Key
from agentapp.storage.db import Database
from agentapp.storage.models import GuardrailCell, Tenant, User

MOST_KEYS = 4


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A row of the list of breakers. ``name`` is the user's or tenant's, if there still is one."""

    key: Key
    name: str
    state: str
    updated_at: float


class CellStore:
    """A `guardrails.registry.Store`. Its statements are made once: that costs more than running them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._locks = db.engine.dialect.name != "sqlite"  # there the whole transaction is one lock
        insert = (postgresql.insert if self._locks else sqlite.insert)(GuardrailCell)
        self._claim = insert.on_conflict_do_nothing()
        new = insert.excluded
        self._upsert = insert.on_conflict_do_update(
            index_elements=["scope", "id"],
            set_={"state": new.state, "mark": new.mark, "updated_at": new.updated_at},
        )
        self._plain = tuple(_states(n) for n in range(MOST_KEYS + 1))
        # Always in the same order, or two transactions could each wait for the other. The one row
        # that everybody needs, the provider's, comes last and so is held the shortest.
        order = (GuardrailCell.scope.desc(), GuardrailCell.id)
        self._locking = tuple(query.order_by(*order).with_for_update() for query in self._plain)

    @contextmanager
    def transaction(self) -> Iterator[CellRows]:
        with self._db.writing() as db:
            yield self.rows(db)

    def rows(self, db: Session) -> CellRows:
        """The rows as part of a transaction that is open already."""
        return CellRows(self, db.connection())

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        with self._db.reading() as db:
            return self._selected(db.connection(), keys, self._plain)

    def listed(self, *, everything: bool = False) -> Iterator[StoredCell]:
        """The cells with something to show, or all of them, a few at a time."""
        names = (
            select(GuardrailCell, User.name, Tenant.name)
            .outerjoin(User, and_(GuardrailCell.scope == "user", User.id == GuardrailCell.id))
            .outerjoin(Tenant, and_(GuardrailCell.scope == "tenant", Tenant.id == GuardrailCell.id))
            .order_by(GuardrailCell.scope, GuardrailCell.updated_at.desc(), GuardrailCell.id)
        )
        query = names if everything else names.where(GuardrailCell.mark != "")
        with self._db.reading() as db:
            for row, user, tenant in db.execute(query.execution_options(yield_per=1000)):
                yield StoredCell(Key(row.scope, row.id), user or tenant or "", row.state, row.updated_at)

    def key_of(self, scope: str, name: str) -> Key | None:
        """The cell of that id or, for a user or tenant, of that name."""
        with self._db.reading() as db:
            ids = [name]
            for table, owner in ((User, "user"), (Tenant, "tenant")):
                if scope == owner:
                    ids += db.scalars(select(table.id).where(table.name == name.casefold()))
            return next((Key(scope, id) for id in ids if db.get(GuardrailCell, (scope, id))), None)

    def _selected(
        self, connection: Connection, keys: Sequence[Key], queries: Sequence[Executable]
    ) -> dict[Key, str]:
        if not keys:
            return {}
        values: dict[str, Any] = {}
        for n, key in enumerate(keys):
            values[f"scope{n}"], values[f"id{n}"] = key
        return {Key(scope, id): state for scope, id, state in connection.execute(queries[len(keys)], values)}


class CellRows:
    """The rows as one transaction sees them: a `guardrails.registry.Rows`."""

    def __init__(self, store: CellStore, connection: Connection) -> None:
        self._store, self._connection = store, connection

    def read(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        store = self._store
        if not store._locks:
            return store._selected(self._connection, keys, store._plain)
        found = store._selected(self._connection, keys, store._locking)
        missing = [key for key in keys if key not in found]
        if missing:
            # A row that is not there cannot be locked. Whoever comes first makes it, empty, and the
            # others wait here until that one's transaction has ended.
            self._connection.execute(store._claim, [_row(key, "{}", "") for key in missing])
            found |= store._selected(self._connection, missing, store._locking)
        return found

    def write(self, rows: Sequence[tuple[Key, str, str]]) -> None:
        if rows:
            self._connection.execute(self._store._upsert, [_row(*row) for row in rows])

    def remove(self, key: Key) -> None:
        self._connection.execute(
            delete(GuardrailCell).where(GuardrailCell.scope == key.scope, GuardrailCell.id == key.id)
        )


def _row(key: Key, text: str, mark: str) -> dict[str, Any]:
    return {"scope": key.scope, "id": key.id, "state": text, "mark": mark, "updated_at": time.time()}


def _states(count: int) -> Select[str, str, str]:
    wanted = [
        and_(GuardrailCell.scope == bindparam(f"scope{n}"), GuardrailCell.id == bindparam(f"id{n}"))
        for n in range(count)
    ]
    return select(GuardrailCell.scope, GuardrailCell.id, GuardrailCell.state).where(or_(False, *wanted))
