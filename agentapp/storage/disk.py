"""The disk that the database is on: whether it has room left, and the one line in the log when it has not."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from sqlalchemy import exc

from agentapp.errors import DiskFull, StorageUnavailable

LOG_EVERY_SECONDS = 60.0
# For so long after a write that had no room, a worker is not ready. Its heartbeat writes more often.
FULL_SECONDS = 15.0
POSTGRES_DISK_FULL = "53100"
PRIMARY_CODE = 0xFF  # SQLite's extended codes have the plain one in their lowest byte

log = logging.getLogger(__name__)


class Disk:  # agentapp: shared ok - a line too many or too few in the log is all that a race can make
    """``file`` is the SQLite file. The disk of a PostgreSQL server cannot be seen from here: then it is None.

    Below the ``reserve`` nothing new is begun. So turns under way can still be stored, chats deleted and
    people signed in and out.
    """

    def __init__(self, file: str | None = None, reserve: int | None = None) -> None:
        self._file, self._reserve = file, reserve
        self._logged_at = self._full_at = -math.inf

    def require_reserve(self) -> None:
        """Asked each time: it takes a few microseconds."""
        if self._file is None or self._reserve is None:
            return
        try:
            free = free_bytes(self._file)
        except OSError as error:
            raise StorageUnavailable("The database cannot be reached right now. Nothing was lost.") from error
        if free < self._reserve:
            raise self.full(f"{free:,} bytes are free, and {self._reserve:,} are kept in reserve")

    def problem(self) -> str | None:
        """In words for an operator. PostgreSQL's disk is seen only by what it refuses."""
        if self._file is not None and self._reserve is not None:
            with suppress(OSError):
                if free_bytes(self._file) < self._reserve:
                    return f"less than {self._reserve / 1e6:,.0f} MB are free, so nothing new is begun"
        if time.monotonic() - self._full_at < FULL_SECONDS:
            return "the database had no room for something a moment ago"
        return None

    def full(self, why: str) -> DiskFull:
        """The error to raise. It is logged here, at most once a minute: every request would log it."""
        self._full_at = time.monotonic()
        if time.monotonic() - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = time.monotonic()
            log.error("the disk of the database is full, nothing new is begun: %s", why)
        return DiskFull("The server's disk is full, so nothing new can be kept. Nothing was lost.")


def free_bytes(file: str | Path) -> int:
    """On the disk that the file is on."""
    found = os.statvfs(file)
    return found.f_bavail * found.f_frsize


def is_disk_full(error: exc.StatementError | exc.TimeoutError) -> bool:
    """Whether this is what a write fails with when there is no room for it."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        code: int = getattr(cause, "sqlite_errorcode", 0)
        return code & PRIMARY_CODE == sqlite3.SQLITE_FULL
    return getattr(cause, "sqlstate", None) == POSTGRES_DISK_FULL
