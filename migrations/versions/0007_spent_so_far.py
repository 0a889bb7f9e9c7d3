"""What a running turn has spent so far is stored with its events, for the case that its worker dies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turn_events", sa.Column("spent", sa.JSON(), nullable=True))
