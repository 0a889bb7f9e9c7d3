"""The time of this machine, as tests plant it in rows. PostgreSQL runs on the same one."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)
