"""What a session is, whose it is, how large it may become; and what can be wrong."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from agentapp.errors import AgentappError

MAX_ID_CHARS = 200
FIRST_VERSION_BITS = 48


class SessionError(AgentappError): ...


class BadSessionKey(SessionError, ValueError):
    def __init__(self, name: str, value: object) -> None:
        super().__init__(
            f"a session key needs a {name}: 1 to {MAX_ID_CHARS} printable characters, not {value!r:.60}"
        )


class SessionConflict(SessionError):
    """Somebody else has saved in between. ``current`` is the version now; 0 if there is no such session."""

    def __init__(self, current: int) -> None:
        super().__init__("This session was changed by somebody else. Load it again, then save.")
        self.current = current


class SessionTooLarge(SessionError, ValueError):
    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what}: {size:,}, and at most {limit:,} are kept")
        self.size, self.limit = size, limit


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session it is, and which. Two keys are never the same session, whatever is in the ids."""

    tenant: str
    user: str
    session: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_text = isinstance(value, str) and value.isprintable()
            if not is_text or not 0 < len(value) <= MAX_ID_CHARS:
                raise BadSessionKey(field.name, value)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bytes are those of the JSON."""

    message_bytes: int = 256_000
    state_bytes: int = 1_000_000
    messages: int = 10_000


@dataclass(frozen=True, slots=True)
class StoredSession:
    """``messages`` have the numbers from ``last - len(messages) + 1`` to ``last``. ``state`` is what was
    saved last, None before that. ``version`` counts how often, from a random number on: so a session that was
    deleted and begun anew has other versions than the old one.
    """

    version: int
    last: int
    messages: tuple[Any, ...]
    state: Any


def first_version() -> int:
    return 1 + secrets.randbits(FIRST_VERSION_BITS)


def as_json(value: Any) -> str:
    """ASCII, so that every store takes it as it is."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def messages_as_json(messages: Sequence[Any], limits: SessionLimits) -> list[str]:
    if not messages:
        raise ValueError("there is no message to append")
    texts = [as_json(message) for message in messages]
    longest = max(map(len, texts))
    if longest > limits.message_bytes:
        raise SessionTooLarge("bytes of a message", longest, limits.message_bytes)
    if len(texts) > limits.messages:
        raise too_many(len(texts), limits)
    return texts


def state_as_json(state: Any, limits: SessionLimits) -> str:
    text = as_json(state)
    if len(text) > limits.state_bytes:
        raise SessionTooLarge("bytes of the state", len(text), limits.state_bytes)
    return text


def too_many(count: int, limits: SessionLimits) -> SessionTooLarge:
    return SessionTooLarge("messages of a session", count, limits.messages)


def checked_seconds(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise ValueError("a time to live is a number of seconds over 0, or None")
    return seconds
