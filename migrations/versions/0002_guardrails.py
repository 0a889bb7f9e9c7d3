"""The guardrails' cells, and what a turn took of them when it was let in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "guardrail_cells",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("mark", sa.String(16), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("scope", "id", name="pk_guardrail_cells"),
    )
    op.create_index(
        "ix_guardrail_cells_marked",
        "guardrail_cells",
        ["mark", "scope"],
        sqlite_where=sa.text("mark <> ''"),
        postgresql_where=sa.text("mark <> ''"),
    )
    op.add_column("turns", sa.Column("admission", sa.JSON(), nullable=True))
