"""The tables that operators look at. None of them holds what people or models said."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from agentapp.storage.models import Base, Id

Number = BigInteger().with_variant(Integer, "sqlite")


def _only(condition: str) -> dict[str, Any]:
    """An index of the rows for which that is true."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class AuditRow(Base):
    """Append-only: a trigger refuses every UPDATE. Rows go only when they are too old.

    People are named by their ids alone, so that a row may stay when its user is erased. ``user_id`` is who
    did it, ``subject`` what it was done to, such as ``user:ID``.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        # Most end with the order in which the page shows rows: see `storage.audit_rows`.
        Index("ix_audit_log_at", "at", "id"),
        Index("ix_audit_log_tenant", "tenant_id", "at", "id"),
        Index("ix_audit_log_tenant_action", "tenant_id", "action", "at", "id"),
        Index("ix_audit_log_action", "action", "id"),
        Index("ix_audit_log_action_at", "action", "at", "id"),
        Index("ix_audit_log_user", "user_id", "at", "id", "action"),
        Index("ix_audit_log_subject", "subject", "at", "id"),
        Index("ix_audit_log_request", "request_id", "at", "id"),
    )

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    at: Mapped[datetime]
    tenant_id: Mapped[str | None] = mapped_column(Id)
    user_id: Mapped[str | None] = mapped_column(Id)
    action: Mapped[str] = mapped_column(String(48))
    subject: Mapped[str] = mapped_column(String(160))
    request_id: Mapped[str] = mapped_column(Id)
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)


class AlertRow(Base):
    """One for each kind and subject until somebody acknowledges it; ``count`` is how often it was raised.

    ``next_delivery_at`` is when it is to be sent to the webhook; null if it is not to be sent (any more).
    ``delivery_since`` is when it was to be sent first, of this time: one that is raised again later is sent
    again. ``delivery_problem`` is why the last try failed.
    """

    __tablename__ = "alerts"
    __table_args__ = (
        Index("uq_alerts_open", "kind", "subject", unique=True, **_only("acknowledged_at IS NULL")),
        Index("ix_alerts_open", "last_at", "id", **_only("acknowledged_at IS NULL")),
        Index("ix_alerts_open_tenant", "tenant_id", "last_at", "id", **_only("acknowledged_at IS NULL")),
        Index("ix_alerts_done", "acknowledged_at", "id", **_only("acknowledged_at IS NOT NULL")),
        Index(
            "ix_alerts_done_tenant",
            *("tenant_id", "acknowledged_at", "id"),
            **_only("acknowledged_at IS NOT NULL"),
        ),
        Index("ix_alerts_delivery", "next_delivery_at", **_only("next_delivery_at IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    kind: Mapped[str] = mapped_column(String(48))
    severity: Mapped[str] = mapped_column(String(16))
    tenant_id: Mapped[str | None] = mapped_column(Id)
    subject: Mapped[str] = mapped_column(String(160))
    detail: Mapped[str]
    request_id: Mapped[str] = mapped_column(Id)
    count: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None] = mapped_column(Id)
    delivered_at: Mapped[datetime | None]
    delivery_attempts: Mapped[int]
    delivery_since: Mapped[datetime | None]
    delivery_problem: Mapped[str] = mapped_column(String(160))
    next_delivery_at: Mapped[datetime | None]


class MinuteCount(Base):
    """How often something happened in one minute, in all workers: ``minute`` is Unix time divided by 60.

    ``tenant_id`` is empty if it belongs to no tenant. Each worker adds what it has counted since it last did,
    and the sums over all tenants under names of their own (`minute_counts.name_of_all`): a page about all of
    them reads as few rows as one about a single tenant.
    """

    __tablename__ = "minute_counts"
    __table_args__ = (Index("ix_minute_counts_minute", "name", "minute"), {"sqlite_with_rowid": False})

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Id, primary_key=True)
    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    label: Mapped[str] = mapped_column(String(96), primary_key=True)
    amount: Mapped[int] = mapped_column(Number)


class UsageDay(Base):
    """What one user spent on one day (UTC) with one agent and model. Written when a turn is settled.

    Chats may be deleted, this stays. Of a user who is erased the ``user_id`` is empty.
    """

    __tablename__ = "usage_days"
    __table_args__ = (Index("ix_usage_days_day", "day", "tenant_id"), {"sqlite_with_rowid": False})

    tenant_id: Mapped[str] = mapped_column(Id, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    agent: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(128), primary_key=True)
    turns: Mapped[int]
    model_calls: Mapped[int]
    input_tokens: Mapped[int] = mapped_column(Number)
    output_tokens: Mapped[int] = mapped_column(Number)
    cost_microusd: Mapped[int] = mapped_column(Number)


class UsageTotal(Base):
    """What all users of a tenant spent on one day with one agent and model: sums of `UsageDay`."""

    __tablename__ = "usage_totals"
    __table_args__ = ({"sqlite_with_rowid": False},)

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Id, primary_key=True)
    agent: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(128), primary_key=True)
    turns: Mapped[int] = mapped_column(Number)
    tokens: Mapped[int] = mapped_column(Number)
    cost_microusd: Mapped[int] = mapped_column(Number)


class UsageTotalDay(Base):
    """When the totals of a day were added up. They stay as they are once the day is over for long enough."""

    __tablename__ = "usage_total_days"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    summed_at: Mapped[datetime]


class WorkerRow(Base):
    """One process that serves. It writes its ``numbers`` every few seconds; one that does not is gone.

    ``build`` is which agentapp it runs, and ``knows_revision`` the newest schema that this one knows: null if
    it is from before revision 0012.
    """

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    host: Mapped[str] = mapped_column(String(64))
    pid: Mapped[int]
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    numbers: Mapped[dict[str, Any]] = mapped_column(JSON)
    build: Mapped[str | None] = mapped_column(String(64))
    knows_revision: Mapped[str | None] = mapped_column(String(32))


class BackgroundJob(Base):
    """A job that only one worker at a time is to do, and when it is due next."""

    __tablename__ = "background_jobs"

    name: Mapped[str] = mapped_column(String(48), primary_key=True)
    next_at: Mapped[datetime]
