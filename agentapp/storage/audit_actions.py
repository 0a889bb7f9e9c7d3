"""Every action that a row of the audit log can have. What each means is in docs/observability.md."""

from __future__ import annotations

ACTIONS = (
    "signed-in",
    "signed-out",
    "sign-in-failed",
    "sign-in-throttled",
    "login-ended",
    "logins-ended",
    "password-changed",
    "password-reset",
    "user-added",
    "user-disabled",
    "user-enabled",
    "role-changed",
    "user-erased",
    "limit-changed",
    "breaker-opened",
    "breaker-closed",
    "breaker-reset",
    "breaker-forced",
    "lookup-denied",
    "chat-exported",
    "chat-deleted",
    "chats-deleted",
    "turn-stopped",
    "alert-acknowledged",
    "retention-changed",
    "cleaned-up",
    "isolation-violated",
    "audit-exported",
)
