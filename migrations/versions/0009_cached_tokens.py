"""How much of a turn's input the provider read from its cache, and how much it wrote to it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default in the database, because workers of the version before may go on for a while.
    for name in ("cache_read_tokens", "cache_write_tokens"):
        op.add_column("turns", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
