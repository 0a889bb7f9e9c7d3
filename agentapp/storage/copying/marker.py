"""The table that a database has while a copy into it is not finished, and by which the copy goes on later.

Nothing but a copy uses such a database: `schema.problem_in` and `schema.migrating` refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text

TABLE = "unfinished_copy"
UNFINISHED = (
    "a copy into this database is not finished: run the same `agentapp db copy` again, "
    "or use another database"
)

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The last row that is in the target. All of the tables before this one are there."""

    table: str = ""
    key: Key = ()

    @property
    def stored_key(self) -> str:
        return json.dumps(self.key)


@dataclass(frozen=True, slots=True)
class Marker:
    """``source`` is by what the source is known again, ``name`` how it was called."""

    source: str
    name: str
    place: Place


def is_marked(connection: Connection) -> bool:
    return inspect(connection).has_table(TABLE)


def read_marker(connection: Connection) -> Marker | None:
    if not is_marked(connection):
        return None
    row = connection.execute(text(f"SELECT source, name, at_table, at_key FROM {TABLE}")).one()  # noqa: S608
    return Marker(row.source, row.name, Place(row.at_table, tuple(json.loads(row.at_key))))


def make_marker(connection: Connection, source: str, name: str) -> None:
    """Fails if there is one: two copies may not begin at once."""
    columns = ("source", "name", "at_table", "at_key")
    connection.execute(
        text(f"CREATE TABLE {TABLE} ({', '.join(f'{each} TEXT NOT NULL' for each in columns)})")
    )
    values = {"source": source, "name": name, "key": Place().stored_key}
    connection.execute(text(f"INSERT INTO {TABLE} VALUES (:source, :name, '', :key)"), values)  # noqa: S608


def move_marker(connection: Connection, before: Place, after: Place) -> bool:
    """Whether it was there. If not, another process copies into the same database."""
    moved = connection.execute(
        text(f"UPDATE {TABLE} SET at_table = :t, at_key = :k WHERE at_table = :old_t AND at_key = :old_k"),  # noqa: S608
        {"t": after.table, "k": after.stored_key, "old_t": before.table, "old_k": before.stored_key},
    )
    return moved.rowcount == 1


def remove_marker(connection: Connection) -> None:
    connection.execute(text(f"DROP TABLE {TABLE}"))


def key_of(row: Sequence[object], places: Sequence[int]) -> Key:
    return tuple(row[place] for place in places)
