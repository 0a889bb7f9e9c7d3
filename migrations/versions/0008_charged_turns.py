"""What was charged for a turn by whoever ended it in place of its worker, which may be alive after all.

And a turn may cost more than two thousand dollars: it could not be stored, nor could its chat go on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ID = sa.String(64)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite has but one size of whole numbers
        op.alter_column("turns", "cost_microusd", type_=sa.BigInteger(), existing_type=sa.Integer())
    op.create_table(
        "charged_turns",
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("spent", sa.JSON(), nullable=False),
        sa.Column("charged_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, ID, nullable=False) for name in ("tenant_id", "user_id", "session_id")),
        sa.PrimaryKeyConstraint("turn_id", name="pk_charged_turns"),
    )
