"""The copy as a whole: what it refuses, how it goes on after an interruption, and how it is compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentapp.errors import BadRequest
from agentapp.storage import migrate
from agentapp.storage.copying import target as filling
from agentapp.storage.copying.marker import Marker, Place, make_marker, read_marker, remove_marker
from agentapp.storage.copying.places import (
    Database,
    check_apart,
    check_source,
    has_our_schema,
    identity_of,
    refuse_running,
)
from agentapp.storage.copying.rows import Row, checksum, read_rows
from agentapp.storage.copying.tables import copied_tables

# One transaction has no more than this, and so has memory.
BATCH_ROWS = 2_000
BATCH_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class Compared:
    """One table, read again in both databases."""

    table: str
    source_rows: int
    target_rows: int
    is_equal: bool


class DatabaseCopy:
    """`begin`, then `copy` to its end, `compare`, and `finish`. It may end anywhere and begin again."""

    def __init__(self, source: Database, target: Database) -> None:
        self._source, self._target = source, target
        self._place = Place()
        self.tables = copied_tables()

    def begin(self, *, restart: bool) -> bool:
        """Whether it goes on where another one was interrupted. With ``restart`` what that one has put into
        the target is taken out.
        """
        check_source(self._source)
        check_apart(self._source, self._target)
        with self._source.snapshot() as connection:
            source = identity_of(connection)
        marker = self._marker()
        if marker is None:
            self._make_tables()
        with self._target.writing() as connection:
            if marker is not None and not restart:
                self._check_same(marker, source)
                self._place = marker.place
                return True
            if marker is not None:
                filling.empty(connection)
                remove_marker(connection)
            make_marker(connection, source, self._source.name)
        return False

    def count(self) -> tuple[int, int]:
        """The rows of the source, and those that the target has of them."""
        with self._source.snapshot() as connection:
            wanted = sum(filling.count_rows(connection, table) for table in self.tables)
        with self._target.snapshot() as connection:
            return wanted, sum(filling.count_rows(connection, table) for table in self.tables)

    def copy(self) -> Iterator[tuple[str, int]]:
        """Each batch when it is stored: the table, and how many rows. All of them are of the same moment."""
        names = [table.name for table in self.tables]
        begun = names.index(self._place.table) if self._place.table else 0
        with self._source.snapshot() as connection:
            for table in self.tables[begun:]:
                after = self._place.key if table.name == self._place.table else ()
                for batch in batches(read_rows(connection, table, after)):
                    with self._target.writing() as writing:
                        after_it = filling.add_batch(writing, table, batch, self._place)
                    self._place = after_it
                    yield table.name, len(batch)

    def compare(self) -> Iterator[Compared]:
        """The source as it is now, and not as it was when it was read: somebody may have changed it."""
        with self._source.snapshot() as source, self._target.snapshot() as target:
            for table in self.tables:
                here, there = (checksum(read_rows(each, table)) for each in (source, target))
                yield Compared(table.name, here[0], there[0], here == there)

    def finish(self, compared: Sequence[Compared]) -> None:
        """Let servers use the target, if all tables are equal."""
        different = [each.table for each in compared if not each.is_equal]
        if different:
            raise BadRequest(
                f"The copy is not the same as FROM in {', '.join(different)}: somebody has changed FROM "
                "since. Stop every server that uses it, and run this again with --restart."
            )
        with self._source.snapshot() as connection:
            refuse_running(connection)
        with self._target.writing() as connection:
            filling.finish(connection)

    def _marker(self) -> Marker | None:
        if self._target.file is not None and not self._target.file.exists():
            return None
        with self._target.snapshot() as connection:
            marker = read_marker(connection)
            if marker is None and (full := filling.tables_with_rows(connection)):
                raise BadRequest(
                    f"TO is not empty: it has rows in {', '.join(full)}. Nothing was copied. "
                    "Give an empty database."
                )
            if marker is not None and not has_our_schema(connection):
                raise BadRequest(
                    "TO has an unfinished copy that another agentapp made: give an empty database."
                )
            return marker

    def _make_tables(self) -> None:
        migrate.upgrade(self._target.url)
        with self._target.snapshot() as connection:
            if not has_our_schema(connection):
                raise BadRequest("TO: a newer agentapp has changed its schema. Give an empty database.")

    def _check_same(self, marker: Marker, source: str) -> None:
        if marker.source != source:
            raise BadRequest(
                f"TO has an unfinished copy of another database, {marker.name}. "
                "With --restart that is taken out first."
            )


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += sum(len(value) for value in row if isinstance(value, str))
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
