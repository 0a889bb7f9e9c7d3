"""What every store of sessions can do."""

from __future__ import annotations

from typing import Any, Protocol

from agentapp.sessions.values import SessionKey, StoredSession


class SessionStore(Protocol):
    """May be shared by all threads and made before a fork. Every call is one step that others see whole or
    not at all. While the store is away it is a `StorageUnavailable`, never an empty session. Whether what was
    to be written was written is then not known.

    A session lives as long as the store's time to live, from its last `append`, `save` or `touch` on. To load
    it does not make it live longer.
    """

    def load(self, key: SessionKey, after: int = 0) -> StoredSession | None:
        """With the messages after that number. None if there is no such session."""

    def append(self, key: SessionKey, *messages: Any) -> int:
        """The number of the last message. They are numbered without a gap, from 1 on, and those of one call
        stay together. It changes no version: nobody's messages are lost by what others do.
        """

    def save(self, key: SessionKey, state: Any, version: int) -> int:
        """Replace the state if the session still has this version; otherwise it is a `SessionConflict`.
        Returns the new version. Version 0 is that of a session that does not exist.
        """

    def touch(self, key: SessionKey) -> bool:
        """Let it live longer. Whether it exists."""

    def delete(self, key: SessionKey) -> bool:
        """Whether it existed."""

    def purge(self) -> int:
        """Remove what has expired, which nobody sees any more. How many: some thousand at most."""

    def close(self) -> None: ...
