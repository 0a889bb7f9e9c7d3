"""SQLite's full-text index, into which new entries of the search are put many at a time.

To put one into it takes half as long as all else that a turn writes, and a hundred take hardly longer than
one. Until then the search reads them one by one: see ``storage.search`` and migration 0010.
"""

from __future__ import annotations

import time

from sqlalchemy import bindparam, column, delete, select, table

from agentapp.storage.db import Database
from agentapp.storage.statements import Statement

MOST_AT_ONCE = 100  # in one transaction: nobody else can write meanwhile
MOST_SECONDS = 0.2

WAITING = table("search_index_waiting", column("id"))
_ANY = Statement(select(WAITING.c.id).limit(1))
_OLDEST = select(WAITING.c.id).order_by(WAITING.c.id).limit(bindparam("most"))
_PUT_INTO_INDEX = Statement(delete(WAITING).where(WAITING.c.id.in_(_OLDEST)))  # a trigger does it


class SearchIndex:
    """A `turns.stores.SearchIndex`."""

    def __init__(self, db: Database) -> None:
        self._db, self._is_used = db, db.engine.dialect.name == "sqlite"
        if self._is_used:
            db.compile((_ANY, _PUT_INTO_INDEX))

    def add_waiting(self) -> bool:
        ends = time.monotonic() + MOST_SECONDS
        while self._has_waiting():
            with self._db.transaction() as db:
                db.run(_PUT_INTO_INDEX, {"most": MOST_AT_ONCE})
            if time.monotonic() > ends:
                return True
        return False

    def _has_waiting(self) -> bool:
        return self._is_used and bool(self._db.look(_ANY, {}))
