"""Audit rows for what anybody can do as often as they like: counted in memory, stored by the heartbeat.

A request only counts. The first time has its row a moment later, and what is repeated is summed up in one row
a minute. Too many different ones in a minute are summed up: for their user, or tenant, or for all. So nobody
can fill the table, and no request waits for it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sqlalchemy import select

from agentapp.isolation import RequestScope, UserScope
from agentapp.storage.audit_log import AuditEntry, AuditLog
from agentapp.storage.db import Database
from agentapp.storage.models import User
from agentapp.storage.names import MAX_NAME_CHARS, normalise_name

# In each minute and worker, of each action: so many subjects of a user have a row of their own, so many users
# of a tenant, and so many tenants.
MOST_SUBJECTS, MOST_USERS, MOST_TENANTS = 10, 10, 5
MOST_COUNTED = 1_000  # different ones of an action, between two beats
NAMES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done, by whom and to what. What is empty is anybody, or anything.

    ``name`` was typed by somebody who is not signed in. Whose it is, if anybody's, is looked up when the row
    is stored, and then it is forgotten.
    """

    action: str
    tenant_id: str = ""
    user_id: str = ""
    subject: str = ""
    format: str = ""
    name: str = ""

    def summed_up(self) -> Deed | None:
        """What it is a part of. None if that is everything."""
        if self.subject:
            return replace(self, subject="", format="")
        if self.user_id:
            return replace(self, user_id="")
        return replace(self, tenant_id="") if self.tenant_id else None

    def most_alike(self) -> int:
        """How many parts of the same may have rows of their own."""
        if self.subject:
            return MOST_SUBJECTS
        return MOST_USERS if self.user_id else MOST_TENANTS


@dataclass(frozen=True, slots=True)
class Tally:
    """``request_id`` is of the first time, ``last`` is when it was done last."""

    count: int
    request_id: str
    last: datetime

    def and_then(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, self.request_id, max(self.last, other.last))


@dataclass(slots=True)
class _Minute:  # agentapp: shared ok - changed by the thread that stores, alone
    """The rows that there are in it."""

    number: int
    stored: set[Deed] = field(default_factory=set)
    _let_in: set[Deed] = field(default_factory=set)
    _parts: Counter[Deed] = field(default_factory=Counter)

    def row_of(self, deed: Deed) -> Deed:
        """The deed itself if there is room, or else what it is summed up in."""
        while not self._lets_in(deed) and (whole := deed.summed_up()) is not None:
            deed = whole
        return deed

    def _lets_in(self, deed: Deed) -> bool:
        whole = deed.summed_up()
        if deed in self._let_in or whole is None:
            return True
        if not self._lets_in(whole) or self._parts[whole] >= deed.most_alike():
            return False
        self._let_in.add(deed)
        self._parts[whole] += 1
        return True


class AuditTallies:  # agentapp: shared ok - counted under a lock; the rest is changed by one thread alone
    """Lives as long as the process. It is also the job of the heartbeat that stores what was counted."""

    name = "store counted audit rows"

    def __init__(self, db: Database, clock: Callable[[], float] | None = None) -> None:
        self._db, self._log, self._clock = db, AuditLog(db), clock or db.clock.estimate
        self._lock = threading.Lock()
        self._counted: dict[str, dict[Deed, Tally]] = {}  # by action
        self._waiting: dict[Deed, Tally] = {}  # until the minute is over: it has a row of theirs
        self._minute = _Minute(0)

    def add(self, scope: UserScope, action: str, subject: str, format: str = "") -> None:
        """The user has done it, perhaps not for the first time."""
        self._count(Deed(action, scope.tenant_id, scope.user_id, subject, format), scope)

    def add_sign_in(self, scope: RequestScope, action: str, name: str) -> None:
        """Somebody has tried to sign in with that name."""
        clean = normalise_name(name)
        self._count(Deed(action, name=clean if len(clean) <= MAX_NAME_CHARS else ""), scope)

    def run(self, now: float) -> bool:
        minute = int(self._clock() // 60)
        if minute != self._minute.number:
            self._minute = _Minute(minute)
        self._store()
        return False

    def end(self) -> None:
        """Nothing is counted any more: what waits for its minute to be over is stored too."""
        self._minute = _Minute(self._minute.number)
        self._store()

    def _count(self, deed: Deed, scope: RequestScope) -> None:
        tally = Tally(1, scope.request_id, datetime.fromtimestamp(self._clock(), UTC))
        with self._lock:
            self._merge(deed, tally)

    def _merge(self, deed: Deed, tally: Tally) -> None:
        counted = self._counted.setdefault(deed.action, {})
        if deed not in counted and len(counted) >= MOST_COUNTED:
            deed = Deed(deed.action)
        before = counted.get(deed)
        counted[deed] = before.and_then(tally) if before else tally

    def _store(self) -> None:
        """If it cannot be stored now, it waits too."""
        waiting: dict[Deed, Tally] = {}
        ready: dict[Deed, Tally] = {}
        for deed, tally in (*self._waiting.items(), *self._take()):
            row = self._minute.row_of(deed)
            into = waiting if row in self._minute.stored else ready
            into[row] = into[row].and_then(tally) if row in into else tally
        self._waiting = {**waiting, **ready}
        if ready:
            self._log.add(*[_entry(deed, tally) for deed, tally in ready.items()])
            self._minute.stored.update(ready)
            self._waiting = waiting

    def _take(self) -> Iterable[tuple[Deed, Tally]]:
        with self._lock:
            taken, self._counted = self._counted, {}
        deeds = [pair for counted in taken.values() for pair in counted.items()]
        try:
            owners = self._owners_of([deed.name for deed, _ in deeds if deed.name])
        except BaseException:
            with self._lock:
                for deed, tally in deeds:
                    self._merge(deed, tally)
            raise
        return [(_without_name(deed, owners), tally) for deed, tally in deeds]

    def _owners_of(self, names: list[str]) -> Mapping[str, tuple[str, str]]:
        """Tenant and user, of those names that are somebody's."""
        found: dict[str, tuple[str, str]] = {}
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = User.name.in_(names[start : start + NAMES_AT_ONCE])
            with self._db.reading() as db:
                for name, tenant_id, user_id in db.execute(
                    select(User.name, User.tenant_id, User.id).where(some)
                ):
                    found[name] = tenant_id, user_id
        return found


def _without_name(deed: Deed, owners: Mapping[str, tuple[str, str]]) -> Deed:
    if deed.name not in owners:
        return replace(deed, name="")
    tenant_id, user_id = owners[deed.name]
    return replace(deed, name="", tenant_id=tenant_id, user_id=user_id, subject=f"user:{user_id}")


def _entry(deed: Deed, tally: Tally) -> AuditEntry:
    detail: dict[str, object] = {"count": tally.count}
    if deed.format:
        detail["format"] = deed.format
    return AuditEntry(
        deed.action,
        deed.subject,
        deed.tenant_id or None,
        deed.user_id or None,
        tally.request_id,
        detail,
        tally.last,
    )
