"""The HTML of a reply is kept with it; and indexes, so that a page of a chat reads only what it shows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Messages that are there already have no HTML. It is made and kept when one of them is first shown."""
    op.add_column("messages", sa.Column("html", sa.Text(), nullable=True))
    op.add_column("messages", sa.Column("renderer", sa.String(64), nullable=True))
    op.drop_index("ix_messages_turn_id", "messages")
    op.create_index("ix_messages_turn", "messages", ["turn_id", "session_id", "tenant_id"])
    op.create_index("ix_turns_follows", "turns", ["session_id", "follows", "number"])
