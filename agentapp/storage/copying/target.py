"""The database that is copied into: begun, filled a batch at a time, finished, or emptied again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, inspect, text

from agentapp.errors import BadRequest
from agentapp.storage.copying.marker import Place, key_of, move_marker, remove_marker
from agentapp.storage.copying.rows import Row, changed
from agentapp.storage.copying.tables import CopiedTable, Kind, all_names, copied_tables

OTHER_COPY = "another copy into the same database is under way"
# What PostgreSQL reads of a row, where it is not what SQLite stores.
_POSTGRES_WRITES: MappingProxyType[Kind, Any] = MappingProxyType(
    {"time": lambda text: f"{text}+00", "words": lambda words: _as_tsvector(words)}
)


def tables_with_rows(connection: Connection) -> list[str]:
    """Of ours. A database that has no tables yet has none."""
    there = inspect(connection)
    found = [name for name in sorted(all_names()) if there.has_table(name)]
    return [name for name in found if connection.execute(text(f'SELECT 1 FROM "{name}" LIMIT 1')).first()]  # noqa: S608


def count_rows(connection: Connection, table: CopiedTable) -> int:
    return int(connection.execute(text(f'SELECT count(*) FROM "{table.name}"')).scalar_one())  # noqa: S608


def add_batch(connection: Connection, table: CopiedTable, rows: Sequence[Row], before: Place) -> Place:
    """Part of one transaction with the marker: a batch is there with its place in it, or neither is."""
    after = Place(table.name, key_of(rows[-1], table.key))
    if not move_marker(connection, before, after):
        raise BadRequest(f"TO: {OTHER_COPY}.")
    with without_triggers(connection, table.name):
        if connection.dialect.name == "sqlite":
            _insert_in_sqlite(connection, table, rows)
        else:
            _copy_into_postgres(connection, table, rows)
    return after


def finish(connection: Connection) -> None:
    """From now on servers may use it. New rows get numbers after those that were copied."""
    if connection.dialect.name == "postgresql":
        for table in copied_tables():
            for column in table.columns:
                _set_sequence(connection, table.name, column.name)
            connection.execute(text(f'ANALYZE "{table.name}"'))
    remove_marker(connection)


def empty(connection: Connection) -> None:
    """Take out all that a copy has put there. The caller has made sure that it was a copy."""
    names = all_names()
    if connection.dialect.name == "postgresql":
        connection.execute(text("TRUNCATE " + ", ".join(f'"{name}"' for name in names)))
        return
    for name in names:
        with without_triggers(connection, name):
            connection.execute(text(f'DELETE FROM "{name}"'))  # noqa: S608
    connection.execute(text("INSERT INTO search_index (search_index) VALUES ('delete-all')"))
    connection.execute(text("DELETE FROM search_index_waiting"))


@contextmanager
def without_triggers(connection: Connection, table: str) -> Iterator[None]:
    """Within a transaction. The triggers count what users keep, and that was counted already: it is in their
    rows. If the transaction does not come to its end they are as before.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f'ALTER TABLE "{table}" DISABLE TRIGGER USER'))
        yield
        connection.execute(text(f'ALTER TABLE "{table}" ENABLE TRIGGER USER'))
        return
    of_table = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table")
    triggers = connection.execute(of_table, {"table": table}).all()
    for name, _ in triggers:
        connection.exec_driver_sql(f'DROP TRIGGER "{name}"')
    yield
    for _, made_by in triggers:
        connection.exec_driver_sql(made_by)


def _insert_in_sqlite(connection: Connection, table: CopiedTable, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.dbapi_connection
    marks = ", ".join("?" * len(table.columns))
    driver.executemany(f'INSERT INTO "{table.name}" ({table.column_list}) VALUES ({marks})', rows)  # noqa: S608
    if table.name == "search_entries":  # what its triggers and the heartbeat would do
        names = [column.name for column in table.columns]
        places = names.index("id"), names.index("words")
        entries = [key_of(row, places) for row in rows]
        driver.executemany("INSERT INTO search_index (rowid, words) VALUES (?, ?)", entries)


def _copy_into_postgres(connection: Connection, table: CopiedTable, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.dbapi_connection
    with (
        driver.cursor() as cursor,
        cursor.copy(f'COPY "{table.name}" ({table.column_list}) FROM STDIN') as copy,
    ):
        for row in changed(rows, table, _POSTGRES_WRITES):
            copy.write_row(row)


def _as_tsvector(words: str) -> str:
    quoted = words.replace("\\", "\\\\").replace("'", "''")
    return "'" + quoted.replace(" ", "' '") + "'" if words else ""


def _set_sequence(connection: Connection, table: str, column: str) -> None:
    """If the column has one."""
    has = text("SELECT pg_get_serial_sequence(:table, :column)")
    sequence = connection.execute(has, {"table": f'"{table}"', "column": column}).scalar_one()
    if sequence is not None:
        highest = f'SELECT coalesce(max("{column}"), 0) + 1 FROM "{table}"'  # noqa: S608
        connection.execute(text(f"SELECT setval(:sequence, ({highest}), false)"), {"sequence": sequence})
