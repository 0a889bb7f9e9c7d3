"""Rows of any of our tables as both databases have them in common, and their checksums.

It is how SQLite stores them: a time is text in UTC, to the microsecond; a boolean is 0 or 1; JSON is its
text. The words of an entry of the search are sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from agentapp.storage.copying.marker import Key
from agentapp.storage.copying.tables import CopiedTable, Kind

Value = str | int | float | None
Row = tuple[Value, ...]
Change = Callable[[Any], Value]

FETCHED_ROWS = 200  # of PostgreSQL, at once
TIME_CHARS = len("2026-01-31 12:00:00.000000")
CHECKSUM_BYTES = 16

POSTGRES_READS: Mapping[Kind, str] = MappingProxyType(
    {
        "plain": "{}",
        "boolean": "{}::int",
        "time": "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
        "json": "{}::text",
        "words": "array_to_string(tsvector_to_array({}), ' ')",
    }
)


def read_rows(connection: Connection, table: CopiedTable, after: Key = ()) -> Iterator[Row]:
    """By their primary key, those after that one. They are read while they are asked for."""
    is_sqlite = connection.dialect.name == "sqlite"
    mark = "?" if is_sqlite else "%s"
    columns = [
        f'"{column.name}"' if is_sqlite else POSTGRES_READS[column.kind].format(f'"{column.name}"')
        for column in table.columns
    ]
    beyond = f" WHERE ({table.key_list}) > ({', '.join([mark] * len(after))})" if after else ""
    query = f'SELECT {", ".join(columns)} FROM "{table.name}"{beyond} ORDER BY {table.key_list}'  # noqa: S608
    rows = (_read_sqlite if is_sqlite else _read_postgres)(connection, query, after)
    changes: dict[Kind, Change] = {"words": _sorted_words, **({"time": _usual_time} if is_sqlite else {})}
    return changed(rows, table, changes)


def changed(rows: Iterable[Row], table: CopiedTable, changes: Mapping[Kind, Change]) -> Iterator[Row]:
    """The same with every value changed that is of one of these kinds, and not null."""
    wanted = [
        (place, changes[column.kind]) for place, column in enumerate(table.columns) if column.kind in changes
    ]
    if not wanted:
        yield from rows
        return
    for row in rows:
        values = list(row)
        for place, change in wanted:
            if values[place] is not None:
                values[place] = change(values[place])
        yield tuple(values)


def checksum(rows: Iterable[Row]) -> tuple[int, str]:
    """How many there are, and a sum that does not depend on their order: each database has one of its own."""
    count = total = 0
    for row in rows:
        digest = hashlib.blake2b(repr(row).encode(), digest_size=CHECKSUM_BYTES).digest()
        total += int.from_bytes(digest)
        count += 1
    return count, f"{total % 256**CHECKSUM_BYTES:0{2 * CHECKSUM_BYTES}x}"


def _read_sqlite(connection: Connection, query: str, values: Sequence[object]) -> Iterator[Row]:
    cursor: Any = connection.connection.cursor()
    try:
        yield from cursor.execute(query, values)
    finally:
        cursor.close()


def _read_postgres(connection: Connection, query: str, values: Sequence[object]) -> Iterator[Row]:
    """The rows stay with the server until they are asked for."""
    driver: Any = connection.connection.dbapi_connection
    with driver.cursor(name="copied_rows") as cursor:
        cursor.itersize = FETCHED_ROWS
        yield from cursor.execute(query, values)


def _usual_time(text: str) -> str:
    if len(text) == TIME_CHARS:
        return text
    return datetime.fromisoformat(text).replace(tzinfo=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _sorted_words(text: str) -> str:
    return " ".join(sorted(text.split(" ")))
