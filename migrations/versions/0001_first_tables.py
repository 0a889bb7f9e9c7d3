"""Accounts, logins, chat sessions, turns, messages and notes.

The column types are written out and not taken from the models: this file must go on making the
same tables when the models have moved on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(64)
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    _accounts()
    _sessions()
    _turns()
    _messages()
    _notes()


def _accounts() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "users",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("disabled_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_users_tenant_id"),
        sa.UniqueConstraint("name", name="uq_users_name"),
        sa.CheckConstraint("role IN ('member', 'admin', 'operator')", name="role"),
    )
    op.create_table(
        "logins",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_logins"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_logins_user_id", ondelete="CASCADE"),
    )
    op.create_index("ix_logins_user_id", "logins", ["user_id"])
    op.create_index("ix_logins_expires_at", "logins", ["expires_at"])
    op.create_table(
        "setup_links",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_setup_links"),
    )


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        *_owner("sessions"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_owner", "sessions", ["tenant_id", "user_id", "updated_at"])


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("id", ID, nullable=False),
        sa.Column("request_id", ID, nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("agent", sa.String(64), nullable=False),
        sa.Column("activity", sa.JSON(), nullable=False),
        sa.Column("error_code", sa.String(64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("model_calls", sa.Integer(), nullable=False),
        sa.Column("cost_microusd", sa.Integer(), nullable=True),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("lease_until", TIME, nullable=False),
        *_in_session("turns"),
        sa.PrimaryKeyConstraint("id", name="pk_turns"),
        sa.UniqueConstraint("session_id", "idempotency_key", name="uq_turns_idempotency_key"),
        sa.CheckConstraint(
            "status IN ('running', 'completed', 'failed', 'stopped', 'interrupted')", name="status"
        ),
    )
    op.create_index("ix_turns_session", "turns", ["session_id", "started_at"])
    op.create_index(
        "uq_turns_one_running",
        "turns",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", ID, nullable=False),
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        *_in_session("messages"),
        sa.PrimaryKeyConstraint("id", name="pk_messages"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_messages_turn_id", ondelete="CASCADE"),
        sa.UniqueConstraint("session_id", "seq", name="uq_messages_seq"),
        sa.CheckConstraint("role IN ('user', 'assistant')", name="role"),
    )
    op.create_index("ix_messages_owner", "messages", ["tenant_id", "user_id"])
    op.create_index("ix_messages_turn_id", "messages", ["turn_id"])


def _notes() -> None:
    op.create_table(
        "notes",
        sa.Column("id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        *_in_session("notes"),
        sa.PrimaryKeyConstraint("id", name="pk_notes"),
        sa.UniqueConstraint("session_id", "number", name="uq_notes_number"),
    )


def _in_session(table: str) -> list[SchemaItem]:
    return [
        sa.Column("session_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=f"fk_{table}_session_id", ondelete="CASCADE"
        ),
        *_owner(table),
    ]


def _owner(table: str) -> list[SchemaItem]:
    return [
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("user_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=f"fk_{table}_tenant_id"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=f"fk_{table}_user_id", ondelete="CASCADE"),
    ]
