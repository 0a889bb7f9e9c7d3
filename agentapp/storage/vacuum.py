"""What was deleted is made to be nowhere in the database's files either.

SQLite overwrites what is deleted (``secure_delete``), but copies of it stay: where a page was split, in the
log, and in the index of the search, which notes what is deleted and forgets it only when its parts are
merged. So the parts are merged, the file is made anew, and the log is emptied.
"""

from __future__ import annotations

import shutil
import time
from enum import Enum
from pathlib import Path
from typing import Any

from agentapp.storage.db import Database

MERGED_PAGES = 100  # at once: nobody else can write meanwhile
MOST_MERGES = 100_000
CHECKPOINT_SECONDS = 30.0  # for readers to end what they read
BUSY_MILLISECONDS = 1000
CHECKPOINT_PAUSE_SECONDS = 0.05
ROOM_NEEDED = 2.5  # times the file: the new one, and the log
LARGEST_WHILE_SERVING = 100_000_000  # bytes: a second or two. Nobody can write meanwhile
POSTGRES_TABLES = (
    "users, logins, sessions, turns, messages, notes, search_entries, live_turns, turn_events, "
    "charged_turns, guardrail_cells, alerts, usage_days"
)


class Vacuumed(Enum):
    """What became of it, in words for who asked for it."""

    DONE = "What was deleted is in no page of the database's files."
    LATER = "Deleted rows may still be in some pages of the database's files: run `agentapp db vacuum` later."
    TOO_LARGE = (
        "The file is too large to be made anew while people write. Deleted rows may still be in some of its "
        "pages: run `agentapp db vacuum` at a quiet time."
    )
    NO_ROOM = (
        "The disk has no room to make the file anew. Deleted rows may still be in some of its pages: make "
        "room, then run `agentapp db vacuum`."
    )
    STILL_READ = (
        "Somebody reads the database for too long. Deleted rows may still be in its log (-wal): run "
        "`agentapp db vacuum` again."
    )
    POSTGRESQL = "The tables are vacuumed. PostgreSQL overwrites deleted rows when it uses their room again."


class Vacuum:
    def __init__(self, db: Database) -> None:
        self._db = db
        file = db.engine.url.database if db.engine.dialect.name == "sqlite" else None
        self._file = None if file is None else Path(file)

    def run(self, largest: int | None = None) -> Vacuumed:
        """Not of a file that is larger than ``largest`` bytes."""
        if self._file is None:
            return self._vacuum_postgres()
        size = self._file.stat().st_size
        self._merge_search_index()
        if largest is not None and size > largest:
            return Vacuumed.TOO_LARGE
        if shutil.disk_usage(self._file.parent).free < size * ROOM_NEEDED:
            return Vacuumed.NO_ROOM
        with self._db.maintaining() as connection:
            connection.execute("VACUUM")
        with self._db.maintaining() as connection:
            return Vacuumed.DONE if _empty_log(connection) else Vacuumed.STILL_READ

    def _merge_search_index(self) -> None:
        """All parts into one, a little at a time. A negative number begins it anew."""
        pages = -MERGED_PAGES
        for _ in range(MOST_MERGES):
            began = time.monotonic()
            with self._db.transaction() as db:
                before = db.run_text("SELECT total_changes()").fetchone()[0]
                db.run_text("INSERT INTO search_index (search_index, rank) VALUES ('merge', ?)", (pages,))
                changed = db.run_text("SELECT total_changes()").fetchone()[0] - before
            if changed < 2:  # as its documentation says: there was nothing to merge
                return
            pages = MERGED_PAGES
            time.sleep(time.monotonic() - began)  # for others to write

    def _vacuum_postgres(self) -> Vacuumed:
        with self._db.maintaining() as connection:
            if connection.prepare_threshold is not None:  # with a pooler, others would get the setting
                connection.execute("SET statement_timeout = 0")
            connection.execute(f"VACUUM {POSTGRES_TABLES}")
        return Vacuumed.POSTGRESQL


def _empty_log(connection: Any) -> bool:
    """Copy the log into the file and cut it off. Readers who began before must have ended."""
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    ends = time.monotonic() + CHECKPOINT_SECONDS
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > ends:
            return False
        time.sleep(CHECKPOINT_PAUSE_SECONDS)
    return True
