"""The rows of the guardrails' cells: read and written inside a transaction that locks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import delete, func, literal_column, select, tuple_

from agentapp.errors import GuardrailRefused
from agentapp.guardrails.cell import Key
from agentapp.guardrails.changes import BreakerChange
from agentapp.isolation import Scope
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry
from agentapp.storage.db import Database
from agentapp.storage.hot_cells import RedisHotCells, SeenCells
from agentapp.storage.models import GuardrailCell
from agentapp.storage.statements import DriverConnection

TABLE = GuardrailCell.__tablename__
# Not a parameter: SQLite would not use the index of these cells, which is an index of this condition.
IS_MARKED = GuardrailCell.mark != literal_column("''")
COLUMNS = ("scope", "id", "state", "mark", "updated_at")


class CellStore:
    """A `guardrails.registry.Store`, and also the store that sign-in needs.

    Some of its statements are plain SQL for the driver: how many cells they are about differs.
    """

    def __init__(self, db: Database, hot: RedisHotCells | None = None) -> None:
        self._db, self._hot = db, hot
        self._locks_rows = db.engine.dialect.name != "sqlite"  # On SQLite the whole transaction is one lock.
        self._parameter = "%s" if self._locks_rows else "?"  # as the driver writes it

    @contextmanager
    def transaction(self) -> Iterator[CellRows]:
        with self.kept_hot() as seen, self._db.transaction() as db:
            yield self.rows(db, seen)

    def rows(self, db: DriverConnection, seen: SeenCells | None = None) -> CellRows:
        """The rows as part of an open transaction. ``seen`` is from `kept_hot` around it."""
        return CellRows(self, db, seen)

    @contextmanager
    def kept_hot(self, scope: Scope | None = None, key: str | None = None) -> Iterator[SeenCells | None]:
        """After the transaction inside, the copy learns what this one has seen, if there is a copy."""
        if self._hot is None:
            yield None
            return
        seen = SeenCells(self._hot.now)
        try:
            yield seen
        except GuardrailRefused:  # nothing was changed, and what was read is still true
            self._hot.confirm(seen, seen.read, scope, None)
            raise
        self._hot.confirm(seen, seen.read | seen.written, scope, key)

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        with self._db.looking() as db:
            return _states(db.run_text(self.select(len(keys)), _parts(keys)))

    def select(self, keys: int, *, lock: bool = False) -> str:
        match_keys = " OR ".join([f"(scope = {self._parameter} AND id = {self._parameter})"] * keys)
        query = f"SELECT scope, id, state FROM {TABLE} WHERE {match_keys}"  # noqa: S608 - names of our own
        # The lock order: always the same, because otherwise two transactions could wait for each other. The
        # provider's row comes last and so is held for the shortest time.
        return f"{query} ORDER BY scope DESC, id FOR UPDATE" if lock else query

    def claim(self, rows: int) -> str:
        return f"{self._insert(rows)} ON CONFLICT DO NOTHING"

    def upsert(self, rows: int) -> str:
        changed = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[2:])
        return f"{self._insert(rows)} ON CONFLICT (scope, id) DO UPDATE SET {changed}"

    def _insert(self, rows: int) -> str:
        row = f"({', '.join([self._parameter] * len(COLUMNS))})"
        return f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - names of our own

    def release(self) -> None:
        self._db.release()

    def open_breakers(self) -> Mapping[str, int]:
        """How many are open now, by scope. It is read from the index of the cells that have a mark."""
        cell = GuardrailCell
        query = select(cell.scope, func.count()).where(IS_MARKED, cell.mark == "open").group_by(cell.scope)
        with self._db.reading() as db:
            return {row[0]: row[1] for row in db.execute(query)}

    def forget(self, scopes: Sequence[str], before: float) -> None:
        """Remove the cells of these scopes that were not changed since then, except those that are locked."""
        cell = GuardrailCell
        old = select(cell.scope, cell.id).where(cell.scope.in_(scopes), cell.updated_at < before)
        with self._db.writing() as db:
            found = [tuple(row) for row in db.execute(old.limit(1000).with_for_update(skip_locked=True))]
            if found:
                db.execute(delete(cell).where(tuple_(cell.scope, cell.id).in_(found)))


class CellRows:
    """The rows as one transaction sees them: a `guardrails.registry.Rows`."""

    def __init__(self, store: CellStore, db: DriverConnection, seen: SeenCells | None = None) -> None:
        self._store, self._db, self._seen = store, db, seen

    def read(self, keys: Sequence[Key], unlocked: Sequence[Key] = ()) -> Mapping[Key, str]:
        found = self._read(keys, unlocked)
        return found if self._seen is None else self._seen.opened(found)

    def _read(self, keys: Sequence[Key], unlocked: Sequence[Key]) -> Mapping[Key, str]:
        store, run = self._store, self._db.run_text
        if not store._locks_rows:
            every = (*keys, *unlocked)
            return _states(run(store.select(len(every)), _parts(every)))
        seen = run(store.select(len(unlocked)), _parts(unlocked)) if unlocked else ()
        while True:
            self._claim(keys)
            found = _states(run(store.select(len(keys), lock=True), _parts(keys)))
            if all(key in found for key in keys):  # No other transaction removed one in between.
                return {**_states(seen), **found}

    def record_breaker(self, change: BreakerChange, scope: Scope) -> None:
        """What a tenant's users share opens by no single user's doing, so that row names none."""
        entry = AuditEntry(
            "breaker-opened" if change.opened else "breaker-closed",
            change.subject,
            tenant_id=None if change.key.scope == "provider" else scope.tenant_id,
            user_id=scope.user_id if change.key.scope in ("session", "user") else None,
            request_id=scope.request_id,
            detail={"failures": change.failures, "cooldown": round(change.cooldown)} if change.opened else {},
        )
        self._db.run_later(ADD_ENTRY, entry.values(self._db.clock.utc_now()))

    def _claim(self, keys: Sequence[Key]) -> None:
        """Make the rows that do not exist, because only an existing row can be locked.

        The first transaction inserts an empty row. The others wait here until the first one has ended.
        No row is locked before this step: a transaction that holds one row while it inserts another could
        meet one that does the opposite, and each would wait for the other.
        """
        in_order = sorted(sorted(keys, key=lambda key: key.id), key=lambda key: key.scope, reverse=True)
        now = self._db.clock.now()
        rows = [part for key in in_order for part in (*key, "{}", "", now)]
        self._db.run_text(self._store.claim(len(keys)), rows)

    def write(self, rows: Sequence[tuple[Key, str, str]]) -> None:
        if rows:
            if self._seen is not None:
                rows = [(key, self._seen.closed(key, text), mark) for key, text, mark in rows]
            now = self._db.clock.now()
            parts = [part for key, text, mark in rows for part in (*key, text, mark, now)]
            self._db.run_text_later(self._store.upsert(len(rows)), parts)

    def remove(self, key: Key) -> None:
        parameter = self._store._parameter
        gone = f"DELETE FROM {TABLE} WHERE scope = {parameter} AND id = {parameter}"  # noqa: S608 - names of our own
        self._db.run_text(gone, key)


def _parts(keys: Sequence[Key]) -> list[str]:
    return [part for key in keys for part in key]


def _states(found: Iterable[tuple[str, str, str]]) -> dict[Key, str]:
    return {Key(scope, id): state for scope, id, state in found}
