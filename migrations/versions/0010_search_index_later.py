"""On SQLite, entries of the search are put into the full-text index many at a time."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# An entry waits here until it is in the index. Whoever deletes its row puts it there: the two cannot come
# apart. If the entry itself is gone, nothing is put there.
WAITING = (
    "CREATE TABLE search_index_waiting (id INTEGER PRIMARY KEY)",
    "CREATE TRIGGER search_index_waiting_removed AFTER DELETE ON search_index_waiting BEGIN"
    " INSERT INTO search_index (rowid, words) SELECT id, words FROM search_entries WHERE id = old.id; END",
    "DROP TRIGGER search_entries_added",
    "CREATE TRIGGER search_entries_added AFTER INSERT ON search_entries BEGIN"
    " INSERT INTO search_index_waiting (id) VALUES (new.id); END",
    # In one trigger, since nobody knows which of two comes first. The index must never be told to remove
    # what is not in it.
    "DROP TRIGGER search_entries_removed",
    "CREATE TRIGGER search_entries_removed AFTER DELETE ON search_entries BEGIN"
    " INSERT INTO search_index (search_index, rowid, words) SELECT 'delete', old.id, old.words"
    " WHERE NOT EXISTS (SELECT 1 FROM search_index_waiting WHERE id = old.id);"
    " DELETE FROM search_index_waiting WHERE id = old.id; END",
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for statement in WAITING:
            op.execute(statement)
