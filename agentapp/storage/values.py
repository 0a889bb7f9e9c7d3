"""What the stores give out: frozen values, never rows."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from agentapp.events import TurnResult
from agentapp.guardrails.admission import Reservation

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
    """``log`` is packed: see ``storage.log``. Of a running turn it is what was written down so far."""

    id: str
    number: int
    follows: int
    status: Status
    agent: str
    log: tuple[Any, ...]
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
    """One chat, whole, in the order in which it was said: all versions of all turns."""

    chat: Chat
    turns: tuple[StoredTurn, ...]
    messages: tuple[StoredMessage, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a person sent. Without a text it is the text of the turn that it ``replaces``.

    It goes after the newest turn, unless it says which turn it comes ``after``, or of which it is
    to be another version.
    """

    text: str | None
    key: str | None = None
    after: str | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Which worker plays a turn, and for how long it counts as alive if nothing is heard of it."""

    worker: str
    length: timedelta


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn that was let in. ``reservation`` is what it took of the guardrails, ``tools`` the calls that its
    session's tools have had.
    """

    turn_id: str
    text: str
    agent: str
    history: tuple[tuple[str, str], ...]
    title: str
    reservation: Reservation
    tools: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Again:
    """The same message with the same key had come before: this is the turn it made."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Told:
    """A turn as its followers are told of it: the events so far, and how it stands."""

    turn: StoredTurn
    title: str
    message: str
    reply: str


@dataclass(frozen=True, slots=True)
class Settled:
    """How a turn ended, to be written in one go."""

    status: Status
    reply: str
    agent: str
    next_agent: str
    log: tuple[Any, ...]
    input_tokens: int
    output_tokens: int
    model_calls: int
    cost_microusd: int | None
    reservation: Reservation
    result: TurnResult
    error_code: str | None = None
    error_message: str | None = None
