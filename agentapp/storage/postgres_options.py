"""What we set on each connection to PostgreSQL. What the operator says in the database's URL comes first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentapp.config import Settings

CONNECT_SECONDS = 4
# What a worker's threads hold at most at once, measured under load: see docs/operations.md.
DEFAULT_POOL = 15
KEEPALIVES = 3  # unanswered ones, after which the connection is given up
LOCK_SECONDS = 10.0
_UNITS = MappingProxyType(
    {"us": 0.000_001, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "": 0.001}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """None is PostgreSQL's own, or what the role has; 0 is no limit. ``pgbouncer`` is "auto", "1" or "0"."""

    statement_seconds: float | None = None
    idle_transaction_seconds: float | None = None
    lock_seconds: float | None = LOCK_SECONDS
    keepalive_seconds: int | None = None
    tcp_user_seconds: float | None = None
    pool: int = DEFAULT_POOL
    pgbouncer: str = "auto"

    @classmethod
    def of(cls, settings: Settings) -> PostgresOptions:
        return cls(
            statement_seconds=settings.db_statement_timeout,
            idle_transaction_seconds=settings.db_idle_transaction_timeout,
            lock_seconds=settings.db_lock_timeout,
            keepalive_seconds=settings.db_keepalive,
            tcp_user_seconds=settings.db_tcp_user_timeout,
            pool=settings.db_pool,
            pgbouncer=settings.db_pgbouncer,
        )

    def of_server(self) -> Mapping[str, str]:
        """The server's settings, in milliseconds."""
        seconds = {
            "statement_timeout": self.statement_seconds,
            "lock_timeout": self.lock_seconds,
            "idle_in_transaction_session_timeout": self.idle_transaction_seconds,
        }
        return {name: _milliseconds(value) for name, value in seconds.items() if value is not None}

    def of_client(self) -> Mapping[str, Any]:
        """The driver's."""
        found: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
        if self.keepalive_seconds is not None:
            found["keepalives_idle"] = self.keepalive_seconds
            found["keepalives_interval"] = max(1, self.keepalive_seconds // 2)
            found["keepalives_count"] = KEEPALIVES
        if self.tcp_user_seconds is not None:
            found["tcp_user_timeout"] = _milliseconds(self.tcp_user_seconds)
        return found


def in_startup_message(settings: Mapping[str, str], of_url: str | None) -> str:
    """The server's settings as libpq's ``options``: they cost no round trip. Of two that have the same name
    the last one counts, so what is in the environment comes after ours, and what is in the URL after that.
    """
    ours = [f"-c {name}={value}" for name, value in settings.items()]
    return " ".join(filter(None, (*ours, os.environ.get("PGOPTIONS"), of_url)))


def statement_seconds(options: str) -> float | None:
    """The statement_timeout that such options set. None if it is none, or no limit."""
    found = re.findall(r"\bstatement_timeout=\s*'?(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)?\b", options)
    seconds = float(found[-1][0]) * _UNITS[found[-1][1]] if found else 0.0
    return seconds or None


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)) if seconds else 0)
