"""Which code can work with the schema, as the database itself says, and which code each worker runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # One row. A revision that takes something away declares `oldest_code`, which is then noted here.
    op.create_table(
        "schema_compatibility",
        sa.Column("oldest_code", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("oldest_code", name="pk_schema_compatibility"),
    )
    op.execute("INSERT INTO schema_compatibility (oldest_code) VALUES ('0011')")
    op.add_column("workers", sa.Column("build", sa.String(64), nullable=True))
    op.add_column("workers", sa.Column("knows_revision", sa.String(32), nullable=True))
