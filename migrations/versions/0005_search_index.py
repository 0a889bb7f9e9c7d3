"""The index for the search, with an entry for each message and title that there is."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

# Not copied: entries that were made with other words than the search asks for would not be found.
from agentapp.storage.words import indexed_words

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ID = sa.String(64)
BATCH = 500

sessions = sa.table(
    "sessions",
    *(sa.column(name, ID) for name in ("id", "tenant_id", "user_id")),
    sa.column("title", sa.String(200)),
    sa.column("updated_at", sa.DateTime(timezone=True)),
)
messages = sa.table(
    "messages",
    *(sa.column(name, ID) for name in ("id", "tenant_id", "user_id", "session_id")),
    sa.column("content", sa.Text()),
    sa.column("created_at", sa.DateTime(timezone=True)),
)
entries = sa.table(
    "search_entries",
    *(sa.column(name, ID) for name in ("tenant_id", "user_id", "session_id", "message_id")),
    sa.column("words", sa.Text()),
)

# The words are already cut and in lower case. This tokenizer takes them as they are: it splits at spaces and
# counts everything outside ASCII as part of a word.
FULL_TEXT = (
    "CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_entries', content_rowid='id',"
    " tokenize='ascii', detail='none', columnsize=0)",
    "CREATE TRIGGER search_entries_added AFTER INSERT ON search_entries BEGIN"
    " INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER search_entries_removed AFTER DELETE ON search_entries BEGIN"
    " INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); END",
)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _make_table()
    if is_sqlite:
        for statement in FULL_TEXT:
            op.execute(statement)
    _fill(is_sqlite)
    if not is_sqlite:  # last: an index is made faster than it is kept up
        op.create_index(
            "ix_search_entries_words",
            "search_entries",
            ["words"],
            postgresql_using="gin",
            postgresql_with={"fastupdate": "off"},
        )


def downgrade() -> None:
    op.drop_table("search_entries")  # with its triggers
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE search_index")


def _make_table() -> None:
    op.create_table(
        "search_entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("session_id", ID, nullable=False),
        sa.Column("message_id", ID, nullable=True),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_search_entries"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_search_entries_session_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name="fk_search_entries_message_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("message_id", name="uq_search_entries_message"),
    )
    op.create_index("ix_search_entries_session_id", "search_entries", ["session_id"])


def _fill(is_sqlite: bool) -> None:
    """Oldest first, since a newer entry must have a higher id."""
    chat, said = sessions.c, messages.c
    titles = sa.select(
        chat.tenant_id,
        chat.user_id,
        chat.id.label("session_id"),
        sa.null().label("message_id"),
        chat.title.label("text"),
    )
    contents = sa.select(
        said.tenant_id, said.user_id, said.session_id, said.id.label("message_id"), said.content.label("text")
    )
    words: Any = sa.bindparam("indexed", type_=sa.Text())
    if not is_sqlite:
        words = sa.func.array_to_tsvector(sa.func.string_to_array(words, " "))
    add = sa.insert(entries).values(words=words)
    _add_in_batches(titles.order_by(chat.updated_at, chat.id), add)
    _add_in_batches(contents.order_by(said.created_at, said.id), add)


def _add_in_batches(texts: Any, add: Any) -> None:
    connection = op.get_bind()
    for batch in connection.execute(texts.execution_options(yield_per=BATCH)).partitions():
        rows = [dict(row._mapping) for row in batch]
        made = [{**row, "indexed": indexed_words(row["user_id"], row.pop("text"))} for row in rows]
        if found := [row for row in made if row["indexed"]]:
            connection.execute(add, found)
