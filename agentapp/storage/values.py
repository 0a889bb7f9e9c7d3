"""What the stores give out: frozen values, never rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from agentapp.events import Event, Status, TurnResult

Role = Literal["member", "admin", "operator"]


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
    """A turn in a transcript. ``activity`` is its events without the texts, which are in the messages.

    A running turn has no message for its reply yet: that text is in ``reply_so_far``.
    """

    id: str
    number: int
    follows: int
    result: TurnResult
    activity: tuple[Event, ...]
    reply_so_far: str
    request_id: str
    started_at: datetime
    ended_at: datetime | None

    @property
    def status(self) -> Status:
        return self.result.status


@dataclass(frozen=True, slots=True)
class Transcript:
    """One whole chat, with all versions of all turns, in the order in which they were written."""

    chat: Chat
    turns: tuple[StoredTurn, ...]
    messages: tuple[StoredMessage, ...]
