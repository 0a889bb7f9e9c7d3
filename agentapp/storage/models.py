"""The tables. Every row of a user's data names its tenant and its user, so that every query can name both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

Id = String(64)


class UtcDateTime(TypeDecorator[datetime]):
    """SQLite does not store time zones, so every time is stored in UTC and read with UTC as its time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    type_annotation_map = {datetime: UtcDateTime, str: Text}  # noqa: RUF012 - SQLAlchemy's own name and form


class Tenant(Base):
    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    retain_sessions_days: Mapped[int | None]  # 0 keeps everything, null is what the settings say
    retain_audit_days: Mapped[int | None]


# In the order of the letters' numbers on both databases, so that the names that begin with some letters stand
# together in the index.
UserName = String(64).with_variant(String(64, collation="C"), "postgresql")


class User(Base):
    """``stored_bytes`` is how much the user keeps. Triggers count it: see migration 0006.

    ``password_given_at`` is when somebody else chose the password; null if the user did, or a command.
    """

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("role IN ('member', 'admin', 'operator')", name="role"),
        Index("ix_users_tenant_name", "tenant_id", "name"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Id, ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(UserName, unique=True)
    password_hash: Mapped[str]
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]
    password_given_at: Mapped[datetime | None]
    stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")


class Login(Base):
    """One signed-in browser. The cookie's token is kept only as a digest; deleting the row ends the login."""

    __tablename__ = "logins"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    address: Mapped[str | None] = mapped_column(String(64))
    browser: Mapped[str | None] = mapped_column(String(256))
    seen_at: Mapped[datetime | None]


class SetupLink(Base):
    """The one-time link that makes the first account. The row is deleted when it is used."""

    __tablename__ = "setup_links"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime]


class Owned:
    """The columns that every row of a user's data has."""

    tenant_id: Mapped[str] = mapped_column(Id, ForeignKey("tenants.id"))
    user_id: Mapped[str] = mapped_column(Id, ForeignKey("users.id", ondelete="CASCADE"))


class InSession(Owned):
    """The same for a row of one chat session. The row is deleted with its session."""

    session_id: Mapped[str] = mapped_column(Id, ForeignKey("sessions.id", ondelete="CASCADE"))


class ChatSession(Owned, Base):
    __tablename__ = "sessions"
    __table_args__ = (
        Index("ix_sessions_owner", "tenant_id", "user_id", "updated_at"),
        Index(
            "ix_sessions_pinned",
            "tenant_id",
            "user_id",
            "pinned_at",
            sqlite_where=text("pinned_at IS NOT NULL"),
            postgresql_where=text("pinned_at IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    title: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    pinned_at: Mapped[datetime | None]


class Turn(InSession, Base):
    """``number`` counts a session's turns. ``follows`` is the number of the turn before it, or 0 for a first
    turn. Turns that follow the same one are versions of each other.

    ``next_agent`` is the specialist that a message after this turn goes to; empty means the front agent.
    ``log`` is the ended turn's events in short, from which all can be told again: see ``events.unpacked``.
    ``admission`` is what the turn has reserved with the guardrails.
    """

    __tablename__ = "turns"
    __table_args__ = (
        CheckConstraint(
            "status IN ('running', 'completed', 'failed', 'stopped', 'interrupted')", name="status"
        ),
        UniqueConstraint("session_id", "idempotency_key", name="uq_turns_idempotency_key"),
        UniqueConstraint("session_id", "number", name="uq_turns_number"),
        Index("ix_turns_follows", "session_id", "follows", "number"),
        Index(
            "uq_turns_one_running",
            "session_id",
            unique=True,
            sqlite_where=text("status = 'running'"),
            postgresql_where=text("status = 'running'"),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    request_id: Mapped[str] = mapped_column(Id)
    number: Mapped[int]
    follows: Mapped[int]
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    status: Mapped[str] = mapped_column(String(16))
    agent: Mapped[str] = mapped_column(String(64))
    next_agent: Mapped[str] = mapped_column(String(64))
    log: Mapped[list[Any]] = mapped_column(JSON)
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None]
    can_retry: Mapped[bool | None]  # None means yes
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    model_calls: Mapped[int]
    cache_read_tokens: Mapped[int] = mapped_column(server_default="0")
    cache_write_tokens: Mapped[int] = mapped_column(server_default="0")
    cost_microusd: Mapped[int | None] = mapped_column(BigInteger().with_variant(Integer, "sqlite"))
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    admission: Mapped[Any | None] = mapped_column(JSON)


class OfTurn:
    """The owner of a row that is deleted with its turn.

    These columns are no foreign keys. If they were, the heartbeat would wait for any transaction that has
    locked the user or the chat, and that transaction may itself wait for the heartbeat.
    """

    tenant_id: Mapped[str] = mapped_column(Id)
    user_id: Mapped[str] = mapped_column(Id)
    session_id: Mapped[str] = mapped_column(Id)


class LiveTurn(OfTurn, Base):
    """One row for each running turn: its owner, its worker, its lease, and whether it is to stop."""

    __tablename__ = "live_turns"

    turn_id: Mapped[str] = mapped_column(Id, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True)
    worker: Mapped[str] = mapped_column(Id, index=True)
    lease_until: Mapped[datetime]
    stop_asked: Mapped[bool]


class TurnEvents(OfTurn, Base):
    """Events of a running turn, from number ``first`` on, as JSON, and what the turn had spent by then; in
    the last row, what it has spent by now. They are deleted when the turn ends.
    """

    __tablename__ = "turn_events"

    turn_id: Mapped[str] = mapped_column(
        Id, ForeignKey("live_turns.turn_id", ondelete="CASCADE"), primary_key=True
    )
    first: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    events: Mapped[list[Any]] = mapped_column(JSON)
    spent: Mapped[list[Any] | None] = mapped_column(JSON)


class ChargedTurn(OfTurn, Base):
    """What was charged for a turn that was ended by somebody else than its worker. Should the worker be alive
    it charges the rest, also if the chat is deleted: so this row refers to nothing.
    """

    __tablename__ = "charged_turns"

    turn_id: Mapped[str] = mapped_column(Id, primary_key=True)
    spent: Mapped[list[Any]] = mapped_column(JSON)
    charged_at: Mapped[datetime]


class Message(InSession, Base):
    """Append-only: what was said is never changed after it was written.

    ``html`` is a reply as the page shows it and ``renderer`` is what made it of ``content``. They are written
    later, or again, if there is none yet or if a newer renderer makes it differently.
    """

    __tablename__ = "messages"
    __table_args__ = (
        UniqueConstraint("session_id", "seq", name="uq_messages_seq"),
        CheckConstraint("role IN ('user', 'assistant')", name="role"),
        Index("ix_messages_owner", "tenant_id", "user_id"),
        # The owner's part of a query alone would make SQLite prefer the index above, with all that the user
        # has ever said.
        Index("ix_messages_turn", "turn_id", "session_id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    turn_id: Mapped[str] = mapped_column(Id, ForeignKey("turns.id", ondelete="CASCADE"))
    seq: Mapped[int]
    role: Mapped[str] = mapped_column(String(16))
    content: Mapped[str]
    created_at: Mapped[datetime]
    html: Mapped[str | None]
    renderer: Mapped[str | None] = mapped_column(String(64))


class SearchEntry(Base):
    """The words of one message, or of a chat's title if ``message_id`` is null: see ``storage.words``.

    A newer entry has a higher ``id``. On PostgreSQL ``words`` has an index. On SQLite it is text, and
    triggers keep the full-text table ``search_index`` in step with it. A row goes with its chat or message,
    so the owner's columns are no foreign keys.
    """

    __tablename__ = "search_entries"
    __table_args__ = (
        UniqueConstraint("message_id", name="uq_search_entries_message"),
        Index(
            "ix_search_entries_words",
            "words",
            postgresql_using="gin",
            postgresql_with={"fastupdate": "off"},  # else every search reads what others wrote last
        ).ddl_if(dialect="postgresql"),
    )

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Id)
    user_id: Mapped[str] = mapped_column(Id)
    session_id: Mapped[str] = mapped_column(Id, ForeignKey("sessions.id", ondelete="CASCADE"), index=True)
    message_id: Mapped[str | None] = mapped_column(Id, ForeignKey("messages.id", ondelete="CASCADE"))
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR(), "postgresql"))


class Note(InSession, Base):
    __tablename__ = "notes"
    __table_args__ = (UniqueConstraint("session_id", "number", name="uq_notes_number"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int]
    text: Mapped[str]
    created_at: Mapped[datetime]


class GuardrailCell(Base):
    """What the guardrails know of one session, user, tenant or provider, as JSON in ``state``.

    ``mark`` is set if the cell has something to show to an operator; such cells are found by it.
    """

    __tablename__ = "guardrail_cells"
    __table_args__ = (
        Index(
            "ix_guardrail_cells_marked",
            "mark",
            "scope",
            "id",
            sqlite_where=text("mark <> ''"),
            postgresql_where=text("mark <> ''"),
        ),
    )

    scope: Mapped[str] = mapped_column(String(16), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    state: Mapped[str]
    mark: Mapped[str] = mapped_column(String(16))
    updated_at: Mapped[float] = mapped_column(Float(53))
