"""How a migration waits for others on PostgreSQL, so that nobody waits for it."""

from __future__ import annotations

from sqlalchemy import Connection, exc, text

from agentapp.errors import StartError

# In all: for another process that migrates, and for the locks of tables.
MIGRATION_WAIT_SECONDS = 120
# Whoever wants to change a table stands in the way of all who come later, even while it only waits for those
# who were there before. So it gives up soon and tries again later, with nothing locked in between. It must be
# longer than PostgreSQL's deadlock_timeout (1 s): only then does an autovacuum of the table give way.
TABLE_WAIT_SECONDS = 1.5
PAUSE_SECONDS = 1.0
IN_USE = (
    "other transactions have held its tables for too long (a backup, a long report, or one that was left "
    "open: see pg_stat_activity). Nothing was changed; try again when they have ended"
)


class TablesInUse(StartError): ...


# The process that migrates PostgreSQL holds the lock with this key. Any number will do, as long as it never
# changes: an older and a newer agentapp must ask for the same lock.
_KEY = 4_201_973_865_170_112
_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


def take_migration_lock(connection: Connection) -> None:
    """For this transaction. What a migration does in it may take long; to wait for a table may not."""
    if connection.dialect.name != "postgresql":
        return
    for name, value in (
        ("statement_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("lock_timeout", f"{MIGRATION_WAIT_SECONDS}s"),
    ):
        connection.execute(text(f"SET LOCAL {name} = '{value}'"))
    try:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_KEY})"))
    except exc.DBAPIError as error:
        if waited_too_long(error):
            raise StartError("another process has been migrating the database for too long") from error
        raise
    connection.execute(text(f"SET LOCAL lock_timeout = '{TABLE_WAIT_SECONDS * 1000:.0f}ms'"))


def waited_too_long(error: exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", "") in (_LOCK_NOT_AVAILABLE, _DEADLOCK)
