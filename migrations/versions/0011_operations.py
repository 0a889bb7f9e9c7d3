"""What operators see: audit log, alerts, counts by minute, usage by day, workers; where logins are from; and
which failed turns cannot be tried again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ID = sa.String(64)
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)

KEEP_AS_WRITTEN = {
    "sqlite": (
        "CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE ON audit_log BEGIN"
        " SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE ON audit_log"
        " FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only()",
    ),
}

AUDIT_INDEXES = (
    ("at", "at", "id"),
    ("tenant", "tenant_id", "at", "id"),
    ("tenant_action", "tenant_id", "action", "at", "id"),
    ("action", "action", "id"),
    ("action_at", "action", "at", "id"),
    ("user", "user_id", "at", "id", "action"),
    ("subject", "subject", "at", "id"),
    ("request", "request_id", "at", "id"),
)


def upgrade() -> None:
    # No column that is added has a default, so that no table is made anew and no trigger is lost.
    op.add_column("logins", sa.Column("address", sa.String(64), nullable=True))
    op.add_column("logins", sa.Column("browser", sa.String(256), nullable=True))
    op.add_column("logins", sa.Column("seen_at", TIME, nullable=True))
    op.add_column("sessions", sa.Column("pinned_at", TIME, nullable=True))
    pinned = sa.text("pinned_at IS NOT NULL")
    op.create_index(
        "ix_sessions_pinned",
        "sessions",
        ["tenant_id", "user_id", "pinned_at"],
        sqlite_where=pinned,
        postgresql_where=pinned,
    )
    op.add_column("turns", sa.Column("can_retry", sa.Boolean(), nullable=True))
    op.add_column("tenants", sa.Column("retain_sessions_days", sa.Integer(), nullable=True))
    op.add_column("tenants", sa.Column("retain_audit_days", sa.Integer(), nullable=True))
    _users()
    _order_marked_cells_by_id()
    _audit_log()
    _alerts()
    _usage_totals()
    op.create_table(
        "minute_counts",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(96), nullable=False),
        sa.Column("amount", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name", "tenant_id", "minute", "label", name="pk_minute_counts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_minute_counts_minute", "minute_counts", ["name", "minute"])
    op.create_table(
        "usage_days",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("model_calls", sa.Integer(), nullable=False),
        sa.Column("input_tokens", NUMBER, nullable=False),
        sa.Column("output_tokens", NUMBER, nullable=False),
        sa.Column("cost_microusd", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", "day", "agent", "model", name="pk_usage_days"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day", "tenant_id"])
    op.create_table(
        "workers",
        sa.Column("id", ID, nullable=False),
        sa.Column("host", sa.String(64), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "background_jobs",
        sa.Column("name", sa.String(48), nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_background_jobs"),
    )


def _users() -> None:
    op.add_column("users", sa.Column("password_given_at", TIME, nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("users", "name", type_=sa.String(64, collation="C"))
    op.create_index("ix_users_tenant_name", "users", ["tenant_id", "name"])
    op.drop_index("ix_users_tenant_id", "users")


def _usage_totals() -> None:
    op.create_table(
        "usage_totals",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("turns", NUMBER, nullable=False),
        sa.Column("tokens", NUMBER, nullable=False),
        sa.Column("cost_microusd", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant_id", "agent", "model", name="pk_usage_totals"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_total_days",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("summed_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("day", name="pk_usage_total_days"),
    )


def _order_marked_cells_by_id() -> None:
    """So that a page of the list of breakers is read from the index, wherever it begins."""
    marked = sa.text("mark <> ''")
    op.drop_index("ix_guardrail_cells_marked", "guardrail_cells")
    op.create_index(
        "ix_guardrail_cells_marked",
        "guardrail_cells",
        ["mark", "scope", "id"],
        sqlite_where=marked,
        postgresql_where=marked,
    )


def _audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("tenant_id", ID, nullable=True),
        sa.Column("user_id", ID, nullable=True),
        sa.Column("action", sa.String(48), nullable=False),
        sa.Column("subject", sa.String(160), nullable=False),
        sa.Column("request_id", ID, nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    for name, *columns in AUDIT_INDEXES:
        op.create_index(f"ix_audit_log_{name}", "audit_log", columns)
    for statement in KEEP_AS_WRITTEN[op.get_bind().dialect.name]:
        op.execute(statement)


def _alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(48), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("tenant_id", ID, nullable=True),
        sa.Column("subject", sa.String(160), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("request_id", ID, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_at", TIME, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.Column("acknowledged_at", TIME, nullable=True),
        sa.Column("acknowledged_by", ID, nullable=True),
        sa.Column("delivered_at", TIME, nullable=True),
        sa.Column("delivery_attempts", sa.Integer(), nullable=False),
        sa.Column("delivery_since", TIME, nullable=True),
        sa.Column("delivery_problem", sa.String(160), nullable=False),
        sa.Column("next_delivery_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    is_open, is_done, to_deliver = (
        "acknowledged_at IS NULL",
        "acknowledged_at IS NOT NULL",
        "next_delivery_at IS NOT NULL",
    )
    for name, columns, condition in (
        ("uq_alerts_open", ["kind", "subject"], is_open),
        ("ix_alerts_open", ["last_at", "id"], is_open),
        ("ix_alerts_open_tenant", ["tenant_id", "last_at", "id"], is_open),
        ("ix_alerts_done", ["acknowledged_at", "id"], is_done),
        ("ix_alerts_done_tenant", ["tenant_id", "acknowledged_at", "id"], is_done),
        ("ix_alerts_delivery", ["next_delivery_at"], to_deliver),
    ):
        where = sa.text(condition)
        unique = name.startswith("uq_")
        op.create_index(name, "alerts", columns, unique=unique, sqlite_where=where, postgresql_where=where)
