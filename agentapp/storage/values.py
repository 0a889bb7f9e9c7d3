"""What the stores give out: frozen values, never rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from agentapp.events import Event, Rendered, Status, TurnResult

Role = Literal["member", "admin", "operator"]


@dataclass(frozen=True, slots=True)
class User:
    """Who ``must_change`` has a password that somebody else chose."""

    id: str
    tenant_id: str
    tenant: str
    name: str
    role: Role
    disabled: bool
    must_change: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    id: str
    title: str
    created_at: datetime
    updated_at: datetime
    pinned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    seq: int
    turn_id: str
    role: str
    content: str
    created_at: datetime
    rendered: Rendered | None = None


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


@dataclass(frozen=True, slots=True)
class Versions:
    """A turn is version ``number`` of ``total``. ``previous`` and ``next`` are the ids beside it, if any."""

    number: int
    total: int
    previous: str | None
    next: str | None


@dataclass(frozen=True, slots=True)
class BranchPage:
    """Some turns of one branch of a chat, one after the other, with all that a page shows of them.

    ``versions`` are by the id of a turn, for those that have more than one. ``following`` is the id of the
    turn after the last one here, and ``end`` of the last one of the branch; it is None if that is too far
    away. ``running`` is the id of the chat's running turn, wherever it is.
    """

    turns: tuple[StoredTurn, ...] = ()
    messages: tuple[StoredMessage, ...] = ()
    versions: Mapping[str, Versions] = field(default_factory=dict)
    has_earlier: bool = False
    following: str | None = None
    end: str | None = None
    running: str | None = None
