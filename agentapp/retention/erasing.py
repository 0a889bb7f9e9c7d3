"""Everything of a user goes: all chats, or the user altogether."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from agentapp.errors import NotFound
from agentapp.isolation import RequestScope, Scope, UserScope
from agentapp.retention.clean_up import Pace

MOST_CHATS = 50  # of one transaction; fewer if they are long


@dataclass(frozen=True, slots=True)
class UserToErase:
    id: str
    tenant_id: str
    name: str
    role: str


class QuietChats(Protocol):
    def remove_quiet(self, scope: UserScope, most: int) -> int:
        """Delete some of those in which no turn runs. How many there were."""

    def left(self, scope: UserScope) -> list[str]:
        """Ids of chats that the user still has."""


class ChatDeletions(Protocol):
    """What is told of them in the audit log."""

    def record_deleted(self, scope: UserScope, count: int) -> None: ...


class UserErasure(Protocol):
    def find(self, user_id: str, tenant_id: str | None) -> UserToErase:
        """Raises `NotFound`, also if the user is of another tenant than the one that is given."""

    def shut_out(self, user: UserToErase) -> None:
        """No login is valid any more, and no new one is opened. Raises `Forbidden` if no operator would be
        left.
        """

    def begin(self, user: UserToErase) -> Mapping[str, int]:
        """End all logins, and remove what could not be found without the chats. How many rows are the user's,
        by table.
        """

    def remove(self, user: UserToErase, counts: Mapping[str, int], by: RequestScope) -> None:
        """All that is left, and an entry in the audit log."""


class AllChats:
    """All chats of a user are deleted. Those in which a turn runs go one by one: what it has reserved is
    given back, as when one chat is deleted.
    """

    def __init__(self, quiet: QuietChats, delete_chat: Callable[[Scope], object], log: ChatDeletions) -> None:
        self._quiet, self._delete_chat, self._log = quiet, delete_chat, log

    def delete(self, scope: UserScope) -> int:
        """By their user. How many there were; it is noted in the audit log, also if not all could be."""
        removed = 0
        try:
            for count in self.steps(scope):
                removed += count
        finally:
            if removed:
                self._log.record_deleted(scope, removed)
        return removed

    def steps(self, scope: UserScope) -> Iterator[int]:
        """How many each step has deleted. After it comes a pause as long as the step: else whoever waits to
        write in this process would wait for the last one.
        """
        pace = Pace(MOST_CHATS)
        began = time.monotonic()
        while count := self._quiet.remove_quiet(scope, pace.count):
            took = time.monotonic() - began
            pace.took(took)
            yield count
            time.sleep(took)
            began = time.monotonic()
        for session_id in self._quiet.left(scope):
            try:
                self._delete_chat(scope.within(session_id))
                yield 1
            except NotFound:  # somebody else was quicker
                continue


class Eraser:
    """In steps, each of which can be done again: if one fails, the user is locked out, and to erase the user
    again does the rest.
    """

    def __init__(self, users: UserErasure, chats: AllChats, forget: Callable[[UserScope], None]) -> None:
        self._users, self._chats, self._forget = users, chats, forget

    def find(self, user_id: str, tenant_id: str | None) -> UserToErase:
        return self._users.find(user_id, tenant_id)

    def erase(self, user: UserToErase, by: RequestScope) -> Mapping[str, int]:
        """How many rows of each table are gone."""
        scope = UserScope(request_id=by.request_id, tenant_id=user.tenant_id, user_id=user.id)
        self._users.shut_out(user)
        counts = self._users.begin(user)
        for _ in self._chats.steps(scope):
            pass
        self._forget(scope)
        self._users.remove(user, counts, by)
        return counts
