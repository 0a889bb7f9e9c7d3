"""Errors of the database become errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from agentapp.errors import StatementTimeout, StorageUnavailable
from agentapp.storage.disk import Disk, is_disk_full
from agentapp.storage.time_limit import took_too_long

POSTGRES_UNDEFINED_TABLE = "42P01"  # SQLite has no code of its own for this error


@contextmanager
def translating_errors(disk: Disk) -> Iterator[None]:
    """An error of the database becomes `StorageUnavailable`. An error of our own statements stays one."""
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:
        if getattr(error.orig, "sqlstate", "") != POSTGRES_UNDEFINED_TABLE:
            raise
        raise StorageUnavailable("The database has no tables.") from error
    except (exc.DBAPIError, exc.TimeoutError) as error:
        if took_too_long(error):
            raise StatementTimeout("The database took too long over this. Nothing was lost.") from error
        if is_disk_full(error):
            raise disk.full(str(getattr(error, "orig", error))) from error
        raise StorageUnavailable("The database cannot be reached right now. Nothing was lost.") from error
