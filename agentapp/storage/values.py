"""What the stores give out: frozen values, never rows."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from agentapp.guardrails.admission import Outcome, Pass

Role = Literal["member", "admin", "operator"]
Status = Literal["running", "completed", "failed", "stopped", "interrupted"]


def new_id() -> str:
    """128 random bits: not to be guessed."""
    return secrets.token_urlsafe(16)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class User:
    id: str
    tenant_id: str
    tenant: str
    name: str
    role: Role
    disabled: bool


@dataclass(frozen=True, slots=True)
class Chat:
    id: str
    title: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredMessage:
    seq: int
    turn_id: str
    role: str
    content: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredTurn:
    id: str
    status: Status
    agent: str
    activity: tuple[dict[str, Any], ...]
    error_code: str | None
    error_message: str | None
    input_tokens: int
    output_tokens: int
    model_calls: int
    cost_usd: float | None
    request_id: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One chat, whole: what the page shows and what an export holds."""

    chat: Chat
    turns: tuple[StoredTurn, ...]
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn that was let in. ``replayed`` is set when the same idempotency key had already made it;
    if not, ``ticket`` is what it took of the guardrails, and ``tools`` the calls its session has had.
    """

    turn_id: str
    agent: str
    history: tuple[tuple[str, str], ...]
    title: str
    replayed: StoredTurn | None = None
    reply: str = ""
    ticket: Pass | None = None
    tools: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """How a turn ended, to be written in one go."""

    status: Status
    reply: str
    agent: str
    stays_with: str
    activity: tuple[dict[str, Any], ...]
    input_tokens: int
    output_tokens: int
    model_calls: int
    cost_microusd: int | None
    ticket: Pass
    outcome: Outcome
    error_code: str | None = None
    error_message: str | None = None
