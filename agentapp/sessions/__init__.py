"""Sessions of your own agents, for several processes and hosts: `RedisSessions` and `SqlSessions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentapp.sessions.store import SessionStore
from agentapp.sessions.values import (
    BadSessionKey,
    SessionConflict,
    SessionError,
    SessionKey,
    SessionLimits,
    SessionTooLarge,
    StoredSession,
)

if TYPE_CHECKING:
    from agentapp.sessions.redis_sessions import RedisSessions
    from agentapp.sessions.sql_sessions import SqlSessions

__all__ = [
    "BadSessionKey",
    "RedisSessions",
    "SessionConflict",
    "SessionError",
    "SessionKey",
    "SessionLimits",
    "SessionStore",
    "SessionTooLarge",
    "SqlSessions",
    "StoredSession",
]


def __getattr__(name: str) -> Any:
    """Either store is imported when it is asked for: Redis comes with an extra, SQLAlchemy takes its time."""
    if name == "RedisSessions":
        try:
            from agentapp.sessions.redis_sessions import RedisSessions
        except ImportError as error:
            needed = f"RedisSessions needs {error.name}: install agentapp with its extra redis"
            raise ImportError(needed) from error
        return RedisSessions
    if name == "SqlSessions":
        from agentapp.sessions.sql_sessions import SqlSessions

        return SqlSessions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
