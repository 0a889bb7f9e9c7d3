"""What users keep, as it was counted, and as it is: the bytes in the tables, added up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import Engine, text

ROW_BYTES = 512
KEPT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sessions": ("title",),
        "turns": ("log", "error_message"),
        "messages": ("content", "html"),
        "notes": ("text",),
    }
)


def counted(engine: Engine) -> dict[str, int]:
    """What the users' rows say."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT id, stored_bytes FROM users"))
        return {user: stored for user, stored in found if stored}


def kept(engine: Engine) -> dict[str, int]:
    """What is in the tables."""
    size = "length(CAST({} AS BLOB))" if engine.dialect.name == "sqlite" else "octet_length({}::text)"
    sums: dict[str, int] = {}
    with engine.connect().execution_options(agentapp_migrates=True) as connection:
        for table, columns in KEPT.items():
            row = " + ".join(f"coalesce({size.format(column)}, 0)" for column in columns)
            query = f"SELECT user_id, sum({ROW_BYTES} + {row}) FROM {table} GROUP BY user_id"
            for user, found in connection.execute(text(query)):
                sums[user] = sums.get(user, 0) + int(found)
    return sums
