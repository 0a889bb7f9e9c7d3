"""How many bytes each user keeps, counted by triggers, beginning with what is there already."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# For each row, whatever is in it: ids and times, short columns, its place in the indexes. Without it empty
# rows would cost nothing, however many there are.
ROW_BYTES = 512
# The columns that are counted, as the bytes of their text in UTF-8.
COUNTED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sessions": ("title",),
        "turns": ("log", "error_message"),
        "messages": ("content", "html"),
        "notes": ("text",),
    }
)


def upgrade() -> None:
    op.add_column("users", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_users_tenant_id", "users", ["tenant_id"])
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    # The triggers come first: on PostgreSQL, making one keeps others from writing to its table until the end
    # of this transaction. So nothing is written between the count and the triggers.
    for table, columns in COUNTED.items():
        for statement in (_sqlite_triggers if is_sqlite else _postgresql_triggers)(table, columns):
            op.execute(statement)
    _count_what_is_there(is_sqlite)


def _sqlite_triggers(table: str, columns: tuple[str, ...]) -> list[str]:
    new, old = (_bytes_of(columns, row, is_sqlite=True) for row in ("new.", "old."))
    changed = " OR ".join(f"new.{column} IS NOT old.{column}" for column in columns)
    events = {
        "added": (f"INSERT ON {table}", f"+ ({new})", "new"),
        "changed": (
            f"UPDATE OF {', '.join(columns)} ON {table} WHEN {changed}",
            f"+ ({new}) - ({old})",
            "new",
        ),
        "removed": (f"DELETE ON {table}", f"- ({old})", "old"),
    }
    return [
        f"CREATE TRIGGER {table}_bytes_{name} AFTER {event} BEGIN"  # noqa: S608 - names of our own
        f" UPDATE users SET stored_bytes = stored_bytes {change} WHERE id = {row}.user_id; END"
        for name, (event, change, row) in events.items()
    ]


def _postgresql_triggers(table: str, columns: tuple[str, ...]) -> list[str]:
    """Deleted rows are counted once for a statement. With a count for each row, deleting a long chat would
    make as many versions of the user's row as the chat has messages, and look through all of them each time.
    """
    new, old, each = (_bytes_of(columns, row, is_sqlite=False) for row in ("NEW.", "OLD.", ""))
    # json has no equality, its text has
    changed = " OR ".join(f"NEW.{column}::text IS DISTINCT FROM OLD.{column}::text" for column in columns)
    count = f"""
        CREATE FUNCTION count_bytes_of_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                UPDATE users SET stored_bytes = stored_bytes + ({new}) WHERE id = NEW.user_id;
            ELSIF TG_OP = 'UPDATE' THEN
                UPDATE users SET stored_bytes = stored_bytes + ({new}) - ({old}) WHERE id = NEW.user_id;
            ELSE
                UPDATE users SET stored_bytes = stored_bytes - removed.bytes
                FROM (SELECT user_id, sum({each}) AS bytes FROM old_rows GROUP BY user_id) AS removed
                WHERE users.id = removed.user_id;
            END IF;
            RETURN NULL;
        END $$"""  # noqa: S608 - names of our own
    call = f"EXECUTE FUNCTION count_bytes_of_{table}()"
    return [
        count,
        f"CREATE TRIGGER {table}_bytes_added AFTER INSERT ON {table} FOR EACH ROW {call}",
        f"CREATE TRIGGER {table}_bytes_changed AFTER UPDATE OF {', '.join(columns)} ON {table}"
        f" FOR EACH ROW WHEN ({changed}) {call}",
        f"CREATE TRIGGER {table}_bytes_removed AFTER DELETE ON {table}"
        f" REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT {call}",
    ]


def _bytes_of(columns: tuple[str, ...], row: str, *, is_sqlite: bool) -> str:
    size = "length(CAST({} AS BLOB))" if is_sqlite else "octet_length({}::text)"
    return " + ".join([str(ROW_BYTES), *(f"coalesce({size.format(row + column)}, 0)" for column in columns)])


def _count_what_is_there(is_sqlite: bool) -> None:
    """One pass over each table, and one update for each user who has something."""
    rows = " UNION ALL ".join(
        f"SELECT user_id, {_bytes_of(columns, '', is_sqlite=is_sqlite)} AS bytes FROM {table}"  # noqa: S608 - names of our own
        for table, columns in COUNTED.items()
    )
    connection = op.get_bind()
    counted = connection.execute(
        sa.text(f"SELECT user_id, sum(bytes) AS bytes FROM ({rows}) AS kept GROUP BY user_id")  # noqa: S608 - names of our own
    )
    found = [{"of_user": row.user_id, "bytes": int(row.bytes)} for row in counted]
    if found:
        connection.execute(sa.text("UPDATE users SET stored_bytes = :bytes WHERE id = :of_user"), found)
